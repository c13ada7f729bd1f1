"""`specsched bench compare`: ratios between result files, and their pictures."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from specsched_client import InvalidRequestError
from specsched_client.bench import figures
from specsched_client.bench.compare.pairing import compare_results
from specsched_client.bench.compare.result_file import read_results
from specsched_client.bench.counters import CountedSteps
from specsched_client.bench.load import ClosedLoop, OpenLoop
from specsched_client.bench.records import RequestRecord
from specsched_client.bench.report import Report, load_result
from specsched_client.bench.statistics import paired_ratio
from specsched_client.bench.summary import RoundResult

from tests.clients.conftest import Run

SETTINGS = {"prompts_sha256": "ab", "max_tokens": 8, "seed": 0}
COUNTED = CountedSteps(
    num_steps=5,
    num_rows=30,
    num_planned_steps=5,
    num_drafted_tokens=40,
    num_scheduled_tokens=20,
    num_verified_tokens=20,
    num_accepted_tokens=10,
    num_output_tokens=20,
    num_preemptions=0,
)


def rounds(speeds: Sequence[float]) -> list[RoundResult]:
    """Of one request of ten tokens each."""
    return [
        RoundResult(
            repeat,
            (RequestRecord(0, 0.0, 10 / speed, 3, 10, 1 / speed, 1),),
            COUNTED,
            None,
            0.5,
        )
        for repeat, speed in enumerate(speeds)
    ]


def write(
    path: Path, results: Mapping[Any, Mapping[str, Sequence[float]]], **settings: Any
) -> Path:
    """A result of `bench serve`: load -> variant -> tokens per second of its rounds."""
    measured = [
        load_result(load, {name: rounds(speeds) for name, speeds in variants.items()})
        for load, variants in results.items()
    ]
    report = Report(["specsched"], {**SETTINGS, **settings}, [], None, measured)
    path.write_text(report.to_json())
    return path


def test_variants_of_one_file_are_compared_with_its_baseline(tmp_path: Path) -> None:
    ours, base = [3.0, 4.0, 5.0], [2.0, 2.5, 2.6]
    file = write(tmp_path / "a.json", {ClosedLoop(4): {"off": base, "throughput": ours}})
    (found,) = compare_results(read_results([file]))
    assert (found.compared.variant, found.baseline.variant) == ("throughput", "off")
    assert asdict(found.ratio) == pytest.approx(asdict(paired_ratio(ours, base)))
    assert found.is_one_session


def test_files_are_compared_by_load_variant_and_round(tmp_path: Path) -> None:
    first = write(
        tmp_path / "a.json",
        {
            ClosedLoop(1): {"off": [1.0, 2.0], "throughput": [2.0, 4.0]},
            ClosedLoop(4): {"off": [1.0, 2.0]},
        },
    )
    second = write(
        tmp_path / "b.json",
        {
            OpenLoop(2.0): {"off": [9.0]},
            ClosedLoop(1): {"throughput": [4.0, 8.0, 90.0], "ratio": [1.0] * 3},
        },
    )
    (found,) = compare_results(read_results([first, second]))
    assert (found.load, found.compared.file, found.baseline.file) == (ClosedLoop(1), "b", "a")
    assert (found.ratio.num_pairs, found.ratio.mean) == (2, pytest.approx(2.0))
    assert not found.is_one_session


def test_only_variants_are_compared_under_whatever_name(tmp_path: Path) -> None:
    first = write(tmp_path / "a.json", {ClosedLoop(1): {"as is": [1.0]}})
    second = write(tmp_path / "b.json", {ClosedLoop(1): {"throughput": [3.0]}})
    (found,) = compare_results(read_results([first, second]))
    assert (found.compared.variant, found.ratio.mean) == ("throughput", pytest.approx(3.0))


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    results = {ClosedLoop(1): {"off": [1.0], "ratio": [1.0]}}
    first = write(tmp_path / "a.json", results)
    other_work = write(tmp_path / "b.json", results, max_tokens=9)
    with pytest.raises(InvalidRequestError, match="b did other work than a: max_tokens is 9"):
        compare_results(read_results([first, other_work]))
    other_load = write(tmp_path / "c.json", {ClosedLoop(2): results[ClosedLoop(1)]})
    with pytest.raises(InvalidRequestError, match="a and c share no load and variant"):
        compare_results(read_results([first, other_load]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Invalid JSON"),
        ("{}", "machine: Field required"),
        ('{"machine": {}, "settings": {}, "results": []}', "results: "),
        (
            '{"machine": {}, "settings": {}, "results": [{"load": {"concurrency": 0}}]}',
            r"load\.ClosedLoop: .*accepted: 1 or more",
        ),
    ],
)
def test_files_that_are_no_results_are_refused_by_name(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(text)
    with pytest.raises(InvalidRequestError, match=rf"wrong\.json: no result .*{message}"):
        read_results([file])
    with pytest.raises(InvalidRequestError, match=r"absent\.json: No such file"):
        read_results([tmp_path / "absent.json"])


def test_budget_counts_per_request_and_step(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", {ClosedLoop(1): {"off": [1.0]}})
    (only,) = read_results([file])[0].results[0].variants.values()
    # 10 of 20 tokens are accepted drafts: 10 steps of a request, with 20 drafts allowed.
    assert figures.budget_per_request(only) == pytest.approx(2.0)


def test_all_points_are_within_the_pictures(tmp_path: Path) -> None:
    loads = (ClosedLoop(1), ClosedLoop(4), OpenLoop(2.0))
    speeds = {"off": [10.0, 11.0], "throughput": [200.0, 210.0]}
    file = write(tmp_path / "a.json", dict.fromkeys(loads, speeds))
    pictures = figures.build_figures(read_results([file]))
    num_points = {"throughput": 3, "budget": 2, "ratios": 2}
    for name, picture in pictures.items():
        (axes,) = picture.axes
        curves = [line for line in axes.get_lines() if line.get_marker() == "o"]
        assert [len(line.get_xydata()) for line in curves] == [num_points[name]] * (
            1 if name == "ratios" else 2
        )
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        for x, y in (point for line in curves for point in line.get_xydata()):
            assert left <= x <= right
            assert low < y < high


def test_the_command_prints_and_draws(run: Run, tmp_path: Path) -> None:
    files = [
        write(
            tmp_path / name,
            {
                ClosedLoop(1): {"off": [1.0, 1.1], "throughput": [2.0, 2.1]},
                ClosedLoop(4): {"off": [3.0, 3.1], "throughput": [4.0, 4.1]},
            },
        )
        for name in ("a.json", "b.json")
    ]
    folder = tmp_path / "figures"
    code, out, _ = run("bench", "compare", *map(str, files), "--figures", str(folder))
    assert code == 0
    for words in ("concurrency 4", "b: throughput", "a: throughput", "Student's t", "drew"):
        assert words in out
    drawn = {path.name: path.read_bytes() for path in folder.iterdir()}
    stems = ("throughput", "budget", "ratios")
    assert set(drawn) == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    assert drawn["budget.png"].startswith(b"\x89PNG")
    assert b"<svg" in drawn["throughput.svg"]
    code, out, _ = run("bench", "compare", str(files[0]), "--json")
    document = json.loads(out)
    assert [each["load"]["concurrency"] for each in document["comparisons"]] == [1, 4]
    assert document["comparisons"][0]["ratio"]["half_width"] > 0


def test_pictures_without_matplotlib_say_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "a.json", {ClosedLoop(1): {"off": [1.0]}})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, error = run("bench", "compare", str(file), "--figures", str(tmp_path / "figures"))
    assert (code, "pip install 'specsched[plot]'" in error) == (5, True)


def test_names_with_markup_are_shown_and_drawn_as_they_are(run: Run, tmp_path: Path) -> None:
    odd = {ClosedLoop(1): {"[/red]": [1.0, 1.1], "[bold]$^$": [2.0, 2.1]}}
    files = [str(write(tmp_path / name, odd)) for name in ("[b].json", "[bold]c.json")]
    code, out, error = run("bench", "compare", *files, "--figures", str(tmp_path / "[i]"))
    assert code == 0, error
    for words in ("[b]: [/red]", "[bold]c: [bold]$^$"):
        assert words in out


@pytest.mark.parametrize("speed", ["Infinity", "NaN", "1e-200", "1e200"])
def test_speeds_that_nothing_has_are_refused_by_place_and_value(tmp_path: Path, speed: str) -> None:
    file = write(tmp_path / "a.json", {ClosedLoop(1): {"off": [3.25, 1.0]}})
    document = json.loads(file.read_text())
    document["results"][0]["variants"]["off"]["rounds"][0]["tokens_per_s"] = float(speed)
    file.write_text(json.dumps(document))
    place = r"results\.0\.variants\.off\.rounds\.0\.tokens_per_s"
    with pytest.raises(
        InvalidRequestError, match=f"{place}: .*; found {re.escape(repr(float(speed)))}"
    ):
        read_results([file])


def test_infinity_in_a_summary_and_doubled_repeats_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", {ClosedLoop(1): {"off": [3.25, 1.0]}})
    document = json.loads(file.read_text())
    (variant,) = document["results"][0]["variants"].values()
    variant["rounds"][1]["repeat"] = 0
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidRequestError, match="a repeat is there twice"):
        read_results([file])
    variant["rounds"][1]["repeat"] = 1
    variant["summary"]["tokens_per_s"] = float("inf")
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidRequestError, match=r"summary\.tokens_per_s: .*; found inf"):
        read_results([file])


def test_a_message_without_a_place_names_the_value(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("[1]")
    with pytest.raises(InvalidRequestError, match=r"`bench sweep`: Input .*; found \[1\]"):
        read_results([file])


def test_the_widest_ratio_of_speeds_that_are_accepted_is_finite() -> None:
    found = paired_ratio([1e-9, 1e12], [1e12, 1e-9])
    assert found.low is not None
    assert found.high is not None
    assert found.half_width is not None
    assert all(map(math.isfinite, (found.mean, found.low, found.high, found.half_width)))
