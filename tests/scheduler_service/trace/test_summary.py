"""`specsched trace` over a trace that was recorded beside a real planner."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from specsched_scheduler.trace.schema import SCHEMA
from specsched_scheduler.trace_command import trace as trace_command
from typer.testing import CliRunner

from tests.protos.builders import make_report, make_request
from tests.scheduler_service.trace.test_replay import record

NUM_STEPS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorded")
    record(directory, NUM_STEPS)
    return directory / "trace"


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(trace_command, [str(each) for each in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_summary_is_the_sum_of_what_was_recorded(folder: Path) -> None:
    code, out, _ = run("summary", folder, "--json")
    told = json.loads(out)
    assert code == 0
    requests = [make_request(step) for step in range(3, 3 + NUM_STEPS)]
    reports = [make_report(step) for step in range(3, 3 + NUM_STEPS)]
    assert (told["files"], told["steps"], told["steps_with_outcome"]) == (1, NUM_STEPS, NUM_STEPS)
    assert (told["first_step_id"], told["last_step_id"]) == (3, 2 + NUM_STEPS)
    assert told["policies"] == ["throughput"]
    assert told["models"] == ["tiny"]
    drafts = sum(int(each.num_draft_tokens.sum()) for each in requests)
    assert told["drafts_per_step"] == pytest.approx(drafts / NUM_STEPS)
    verified = sum(int(each.num_verified.sum()) for each in reports)
    accepted = sum(int(each.num_accepted.sum()) for each in reports)
    assert (told["verified_tokens"], told["accepted_tokens"]) == (verified, accepted)
    assert told["accepted_share"] == pytest.approx(accepted / verified)
    sampling = sum(len(each.num_accepted) for each in reports)
    assert told["tokens_per_step"] == pytest.approx((accepted + sampling) / NUM_STEPS)
    assert told["measured_ms_p50"] == pytest.approx(reports[0].draft_ms + reports[0].verify_ms)
    assert 0 < told["plan_us_p50"] <= told["plan_us_p99"]
    assert told["seconds"] > 0
    assert told["bytes"] == sum(file.stat().st_size for file in folder.iterdir())


def test_a_summary_for_people_has_a_line_for_each_fact(folder: Path) -> None:
    code, out, _ = run("summary", folder)
    facts = dict(line.split("  ", 1) for line in out.splitlines())
    assert code == 0
    assert facts["policies"].strip() == "throughput"
    assert facts["steps"].strip() == str(NUM_STEPS)
    assert set(facts) == {
        name.replace("_", " ") for name in json.loads(run("summary", folder, "--json")[1])
    }


def test_the_head_has_a_line_for_each_step(folder: Path) -> None:
    code, out, _ = run("head", folder, "-n", 4)
    header, *lines = out.splitlines()
    assert code == 0
    assert [int(line.split()[0]) for line in lines] == [3, 4, 5, 6]
    assert header.split()[:4] == ["step", "requests", "drafts", "budget"]
    request, report = make_request(3), make_report(3)
    cells = lines[0].split()
    assert [int(cells[1]), int(cells[2])] == [
        len(request.slot_id),
        int(request.num_draft_tokens.sum()),
    ]
    assert int(cells[7]) == int(report.num_accepted.sum())


def test_the_head_as_json_has_every_column(folder: Path) -> None:
    code, out, _ = run("head", folder, "--num", 2, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, len(rows)) == (0, 2)
    assert set(rows[0]) == set(SCHEMA.names)
    assert rows[1]["slot_id"] == make_request(4).slot_id.tolist()


def test_steps_without_an_outcome_and_empty_files_are_told_as_such(
    folder: Path, tmp_path: Path
) -> None:
    (file,) = folder.iterdir()
    table = pq.read_table(file)
    nothing = {
        name: pa.nulls(table.num_rows, table.schema.field(name).type)
        for name in ("verify_ms", "draft_ms", "num_verified", "num_accepted")
    }
    columns = [nothing.get(name, table[name]) for name in table.column_names]
    pq.write_table(pa.table(columns, schema=table.schema), tmp_path / "a.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "b.parquet")
    told = json.loads(run("summary", tmp_path, "--json")[1])
    assert (told["files"], told["steps"], told["steps_with_outcome"]) == (2, NUM_STEPS, 0)
    assert told["accepted_share"] is None
    assert told["measured_ms_p50"] is None
    assert run("head", tmp_path, "-n", 1)[1].splitlines()[1].split()[-4:] == ["-"] * 4
    assert run("head", tmp_path / "b.parquet")[1].count("\n") == 1


@pytest.mark.parametrize("verb", ["summary", "head"])
def test_what_is_no_trace_is_named(verb: str, tmp_path: Path) -> None:
    assert run(verb, tmp_path)[0::2] == (2, f"error: {tmp_path}: no .parquet file is there\n")
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    code, _, err = run(verb, other)
    assert code == 2
    assert "not a trace, without" in err
    other.write_text("no parquet")
    code, _, err = run(verb, other)
    assert code == 2
    assert str(other) in err


def test_without_pyarrow_the_command_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def refuse(name: str, *args: object) -> object:
        if name == "specsched_scheduler.trace" and "summary" in args[2]:
            raise ImportError("No module named 'pyarrow'")
        return real_import(name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    code, _, err = run("summary", folder)
    assert code == 5
    assert "pip install 'specsched[trace]'" in err


def test_a_trace_has_no_column_for_text_or_tokens() -> None:
    """Numbers and flags only; slots and counts say nothing of what was said."""

    def leaf(kind: pa.DataType) -> pa.DataType:
        return leaf(kind.value_type) if pa.types.is_list(kind) else kind

    kinds = {field.name: leaf(field.type) for field in SCHEMA}
    assert not [n for n, t in kinds.items() if pa.types.is_string(t) or pa.types.is_binary(t)]
    assert not [n for n in kinds if "token_id" in n or "text" in n.replace("context", "")]
