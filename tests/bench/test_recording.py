"""The benches' records: complete, repeatable, and nothing that JSON cannot hold."""

from __future__ import annotations

import json

import pytest

from tests.bench.recording import Machine, describe_machine, percentiles, write_record


def test_percentiles_of_known_samples():
    got = percentiles([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (got["min"], got["p50"], got["max"], got["num_samples"]) == (1.0, 3.0, 5.0, 5)


def test_percentiles_refuse_nothing():
    with pytest.raises(ValueError, match="no samples"):
        percentiles([])


def test_record_says_where_when_and_how(tmp_path):
    path = write_record(
        "decision",
        [{"num_requests": 256, "p50_us": 7.5}],
        settings={"policy": "throughput"},
        command="make bench BENCH=tests/bench/test_decision.py",
        directory=tmp_path / "raw",
    )
    record = json.loads(path.read_text())
    assert path.name == f"decision.{describe_machine().tag}.json"
    assert record["results"] == [{"num_requests": 256, "p50_us": 7.5}]
    assert record["settings"] == {"policy": "throughput"}
    assert record["command"].startswith("make bench BENCH=")
    assert record["recorded_at"].endswith("+00:00")
    assert {"python", "numpy", "numba"} <= record["versions"].keys()
    assert record["machine"]["num_cpus"] >= 1
    assert set(record["source"]) == {"commit", "modified"}


@pytest.mark.parametrize("bench", ["", "Decision", "a/b", "a.b"])
def test_name_that_is_no_file_name_is_refused(tmp_path, bench):
    with pytest.raises(ValueError, match="bench name"):
        write_record(bench, [{"x": 1}], command="make bench", directory=tmp_path)


def test_not_a_number_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_record("decision", [{"x": float("nan")}], command="make bench", directory=tmp_path)


@pytest.mark.parametrize(
    ("machine", "tag"),
    [
        (Machine("Intel(R) Xeon(R) CPU @ 2.20GHz", 2, 8.0, "6", None), "intel-xeon-2cpu"),
        (Machine("AMD EPYC 7B13", 2, 8.0, "6", None), "amd-epyc-7b13-2cpu"),
        (Machine("any", 16, 128.0, "6", "NVIDIA H200"), "nvidia-h200"),
    ],
)
def test_machine_tag(machine, tag):
    assert machine.tag == tag
