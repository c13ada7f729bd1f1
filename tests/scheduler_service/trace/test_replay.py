"""Traces are written beside a real planner, read back, and replayed by other policies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from specsched_protocol.hindsight import Hindsight, StepOutcome
from specsched_protocol.plan import StepReport
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.decision.finished import reports_of
from specsched_scheduler.learning.errors import TraceError
from specsched_scheduler.planner import Planner, PlannerConfig
from specsched_scheduler.policies import build_policy
from specsched_scheduler.replay_command import replay as replay_command
from specsched_scheduler.trace import TraceConfig, open_recorder, trace_metadata
from specsched_scheduler.trace.reader import read_trace_files
from specsched_scheduler.trace.replay import ReplayTotals, replay
from structlog.testing import capture_logs
from typer import Typer
from typer.testing import CliRunner

from tests.protos.builders import make_report, make_request, make_rows
from tests.scheduler_service.planner.rig import MAX_REQUESTS, K, Rig, wait_until

COST = plan_pb2.CostModel(
    verify=[plan_pb2.VerifyCost(tokens=n, ms=[1.0 + n / 4]) for n in (1, 4, 16, 64)],
    capture_limit=64,
)
HELLO = pb.Hello(
    executor_name="tiny",
    boot_id=bytes(16),
    model=pb.ModelFacts(name="tiny", max_requests=MAX_REQUESTS, max_draft_tokens=K),
    cost=COST,
)


def drained(planner: Planner) -> list[StepReport]:
    return reports_of(planner.drain_reports())


def record(directory: Path, num_steps: int, **limits: int) -> int:
    """Decide so many steps with a real planner, report each, record them; steps left out."""
    rig = Rig(directory)
    planner = rig.attach(config=PlannerConfig(is_recording=True))
    recorder = open_recorder(TraceConfig(directory / "trace", **limits), "test-1")
    recorder.describe(trace_metadata(HELLO, build_policy("throughput")))
    try:
        for step in range(3, 3 + num_steps):
            rig.plan(make_request(step), make_rows(step - 2))
            rig.transport.report(make_report(step))
            reports = []
            wait_until(lambda: bool(reports.extend(drained(planner)) or reports))  # noqa: B023
            recorder.observe(planner.drain_steps()[0], reports, 0)
    finally:
        rig.close()
        recorder.close()
    return recorder.num_left_out  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 120 steps, recorded beside a real planner."""
    directory = tmp_path_factory.mktemp("recorded")
    record(directory, 120)
    (file,) = (directory / "trace").iterdir()
    return file


def test_what_was_seen_decided_and_told_is_read_back(tmp_path: Path):
    assert record(tmp_path, 20) == 0
    (file,) = read_trace_files(tmp_path / "trace")
    assert (file.policy, file.max_draft_tokens, file.cost) == ("throughput", K, COST)
    assert [step.step_id for step in file.steps] == list(range(3, 23))
    step, request, report = file.steps[4], make_request(7), make_report(7)
    np.testing.assert_array_equal(step.inputs.num_draft_tokens, request.num_draft_tokens)
    np.testing.assert_allclose(step.inputs.confidence, make_rows(5).confidence)
    assert step.inputs.num_other_tokens == request.num_other_tokens
    assert step.budget == 12  # the rig's costs are flat: everything is verified
    assert step.outcome is not None
    np.testing.assert_array_equal(step.outcome.num_accepted, report.num_accepted)
    assert step.outcome.measured_ms == pytest.approx(report.draft_ms + report.verify_ms)


def test_steps_that_cannot_be_told_are_left_out_and_the_recorder_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise KeyError("no such column")

    monkeypatch.setattr("specsched_scheduler.trace.recorder.to_row", fail)
    with capture_logs() as logs:
        assert record(tmp_path, 12) == 12
    faults = [line for line in logs if line["event"] == "steps not recorded"]
    assert faults[0]["reason"] == "KeyError: 'no such column'"
    assert sum("exc_info" in line for line in faults) == 1


def test_files_rotate_and_stay_within_their_bounds(tmp_path: Path):
    record(tmp_path, 40, max_bytes=60_000, max_file_bytes=20_000)
    for _ in range(12):  # more of the same, as later attachments write it
        record(tmp_path, 2, max_bytes=60_000, max_file_bytes=20_000)
    files = list((tmp_path / "trace").iterdir())
    assert sum(file.stat().st_size for file in files) <= 60_000
    assert not [file for file in files if file.suffix != ".parquet"]


def test_policies_are_judged_on_recorded_steps(trace: Path):
    files = list(read_trace_files(trace))
    totals = {}
    for text in ("throughput", "off", "fixed(7)"):
        totals[text] = ReplayTotals()
        for step in replay(files, build_policy(text)):
            totals[text].add(step)
    off, everything = (totals[each].to_json()["new"] for each in ("off", "fixed(7)"))
    assert (off["mean_budget"], off["mean_expected_tokens"] > 0) == (0.0, True)
    assert everything["mean_budget"] >= totals["throughput"].to_json()["new"]["mean_budget"] > 0
    # Without drafts each request that samples brings one token.
    assert off["tokens_per_step"] < everything["tokens_per_step"]
    for each in totals.values():
        assert each.num_outcomes > 100
        assert each.to_json()["new"]["regret_tokens_per_step"] >= 0


DEMO = Path(__file__).parents[2] / "fixtures" / "demo-trace.parquet"


def test_demo_is_replayed_as_it_was_recorded():
    """The recorded policy, decided anew from the trace alone, differs by what was learned only."""
    (file,) = read_trace_files(DEMO)
    totals = ReplayTotals()
    for step in replay([file], build_policy(file.policy)):
        totals.add(step)
        assert step.new.regret >= 0
    report = totals.to_json()
    assert file.policy == "throughput"
    assert totals.num_outcomes > 0.9 * totals.num_steps > 20
    assert report["new"]["mean_expected_tokens"] == pytest.approx(
        report["recorded"]["mean_expected_tokens"], rel=0.1
    )


def test_parts_left_out_of_decisions_are_replayed_and_others_refused():
    app = Typer()
    app.command()(replay_command)

    def run(policy: str) -> Any:
        return CliRunner().invoke(app, [str(DEMO), "--policy", policy, "--json"])

    whole, left_out = (
        json.loads(run(policy).stdout)["new"]
        for policy in ("throughput", "throughput(ranking=0, context=0)")
    )
    assert left_out["mean_budget"] != whole["mean_budget"]
    refused = run("throughput(fill=0, context=0, correction=0)")
    assert refused.exit_code == 2
    assert "to leave out fill, correction changes no replay" in refused.stderr
    assert "accepted: ranking, context, prior" in refused.stderr


def test_command_prints_and_plots(tmp_path: Path, trace: Path):
    app = Typer()
    app.command()(replay_command)
    picture = tmp_path / "replay.png"
    done = CliRunner().invoke(
        app, [str(trace), "--policy", "fixed(2)", "--json", "--plot", str(picture)]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert report["policy"] == "fixed(k=2)"
    assert report["new"]["tokens_per_second"] > 0
    assert picture.stat().st_size > 1000
    assert CliRunner().invoke(app, [str(trace), "--policy", "nonsense"]).exit_code == 2
    other = [str(trace), "--policy", "fixed(2)", "--plot", str(tmp_path / "replay.docx")]
    refused = CliRunner().invoke(app, other)
    assert refused.exit_code == 2
    assert "accepted: a file that ends in .png, .svg, .pdf" in refused.stderr
    refused = CliRunner().invoke(app, [*other[:-1], str(tmp_path)])
    assert refused.exit_code == 2
    assert f"--plot {tmp_path}: is a folder" in refused.stderr
    nowhere = tmp_path / "nowhere" / "replay.png"
    refused = CliRunner().invoke(app, [*other[:-1], str(nowhere)])
    assert refused.exit_code == 2
    assert refused.stderr == f"error: --plot {nowhere}: {nowhere.parent} is no folder\n"


def test_file_that_is_no_trace_is_refused_by_name(tmp_path: Path, trace: Path):
    other = tmp_path / "other.parquet"
    pq.write_table(pq.read_table(trace).select(["step_id"]), other)
    with pytest.raises(TraceError, match=r"other.parquet: not a trace, without .*budget"):
        list(read_trace_files(other))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(trace.read_bytes()[:1000])
    with pytest.raises(TraceError, match=r"broken\.parquet"):
        list(read_trace_files(broken))
    nowhere = tmp_path / "nowhere"
    with pytest.raises(TraceError, match=f"^{nowhere}: No such file or directory$"):
        list(read_trace_files(nowhere))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("num_tokens", 2**31 - 1, "num_tokens is 2147483647, accepted: 0..4259840"),
        ("num_tokens", 0, "num_tokens is 0, accepted: at least the sum of num_verified"),
        ("num_other_tokens", 2**32 - 1, "num_other_tokens is 4294967295, accepted: 0..4259840"),
        ("num_other_tokens", None, "num_other_tokens is None, accepted"),
        ("num_prefill_tokens", 4_000_000, "num_prefill_tokens is 4000000, accepted: up to num_oth"),
        ("budget", 2**32 - 1, "budget is 4294967295, accepted: 0..4259840"),
        ("expected_tokens", float("nan"), "expected_tokens is nan, accepted: a number in 0.."),
        ("padded_num_tokens", 2**32 - 1, "padded_num_tokens is 4294967295"),
        ("draft_ms", float("inf"), "draft_ms is inf, accepted: a number in 0..1000000000"),
        ("verify_ms", -1.0, "verify_ms is -1.0"),
        ("verify_ms", None, "verify_ms is None"),
        ("slot_id", [], "generation is a list of [0-9]* values, accepted: a list of 0 values"),
        ("samples", [True], "samples is a list of 1 values"),
        ("weight", None, "weight is None, accepted: a list of"),
        ("confidence", [], "confidence is a list of 0 values"),
        ("outcome_generation", [], "outcome_generation is a list of 0 values"),
        ("num_accepted", None, "num_accepted is None"),
    ],
)
def test_a_row_that_no_executor_wrote_is_refused(tmp_path: Path, trace: Path, column, value, words):
    with pytest.raises(TraceError, match=rf"other\.parquet: step 5: {words}"):
        list(read_trace_files(changed(trace, tmp_path, column, lambda _: value)))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("slot_id", 2**16, "slot_id.0. is 65536, accepted: 0..65535"),
        ("num_draft_tokens", K + 1, f"num_draft_tokens.0. is {K + 1}, accepted: 0..{K}"),
        ("num_confidences", 2**32 - 1, "num_confidences.0. is 4294967295"),
        ("weight", float("nan"), "weight.0. is nan"),
        ("weight", -1.0, "weight.0. is -1.0"),
        ("context_tokens", None, "context_tokens.0. is None"),
        ("samples", None, "samples.0. is None, accepted: true or false"),
        (
            "confidence",
            [],
            f"confidence.0. is a list of 0 values, accepted: max_draft_tokens = {K}",
        ),
        ("confidence", None, "confidence.0. is None"),
        ("num_verified", 2**32 - 1, "num_verified.0. is 4294967295"),
        ("num_accepted", 2**32 - 1, "num_accepted.0. is 4294967295"),
    ],
)
def test_so_is_one_value_of_a_list(tmp_path: Path, trace: Path, column, value, words):
    path = changed(trace, tmp_path, column, lambda values: [value, *values[1:]])
    with pytest.raises(TraceError, match=rf"other\.parquet: step 5: {words}"):
        list(read_trace_files(path))


@pytest.mark.parametrize("length", [b"0", b"65", b"-1", b"1000000000", b"many"])
def test_a_draft_length_that_no_executor_has_is_refused(tmp_path: Path, trace: Path, length: bytes):
    table, path = pq.read_table(trace), tmp_path / "other.parquet"
    metadata = {**table.schema.metadata, b"specsched.max_draft_tokens": length}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(TraceError, match=r"other\.parquet: .*" + length.decode()):
        list(read_trace_files(path))


def changed(trace: Path, directory: Path, column: str, change: Callable[[Any], object]) -> Path:
    """The same trace with another value in one column of its third step."""
    table, path = pq.read_table(trace), directory / "other.parquet"
    rows = table.to_pylist()
    rows[2][column] = change(rows[2][column])
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    return path


# ===================== Hindsight =====================

OUTCOME = StepOutcome(
    num_drafts=np.array([3, 3]),
    num_verified=np.array([2, 1]),
    num_accepted=np.array([1, 1]),
    confidence=np.array([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4]]),
    weight=np.ones(2),
    num_other_tokens=2,
    measured_ms=5.0,
)
MS = np.arange(20, dtype=np.float64)


def test_known_outcomes_count_as_they_were_and_open_ones_by_confidence():
    hindsight = Hindsight(OUTCOME, MS)
    # Ranked: r0 0.9, r0 0.72, r1 0.6, r0 0.504, r1 0.3, r1 0.12.
    by_budget = [2, 3, 3, 4, 4, 4.5, 4.7]
    assert [hindsight.tokens(b) for b in range(7)] == pytest.approx(by_budget)
    assert hindsight.tokens(6, max_verify_len=1) == pytest.approx(4)
    assert hindsight.ms(3) == pytest.approx(5.0)  # as many rows as were run
    assert hindsight.ms(1) == pytest.approx(3.0)
    assert hindsight.run_regret() == pytest.approx(max(2 / 2, 3 / 3, 4 / 5) * 5.0 - 4)
    assert hindsight.regret(3) == pytest.approx(hindsight.run_regret())
    assert hindsight.regret(1) == pytest.approx(0.0)


def test_of_equal_ranks_the_earlier_position_comes_first_then_the_earlier_row():
    outcome = StepOutcome(
        num_drafts=np.array([2, 2]),
        num_verified=np.array([1, 1]),
        num_accepted=np.array([0, 1]),
        confidence=np.ones((2, 2)),
        weight=np.ones(2),
        num_other_tokens=2,
        measured_ms=1.0,
    )
    hindsight = Hindsight(outcome, MS)
    # r0 was rejected, so that its second draft is lost too; that of r1 is open.
    assert [hindsight.tokens(b) for b in range(5)] == [2, 2, 3, 3, 4]


def test_an_open_draft_without_a_confidence_counts_as_even_odds():
    unknown = np.full((2, 3), np.nan)
    unknown.flags.writeable = False
    hindsight = Hindsight(dataclasses.replace(OUTCOME, confidence=unknown), MS)
    # r0 0.5, r1 0.5 (accepted both), r0 0.25 (rejected), r1 0.25 (open: 0.5), then 0 and 0.25.
    assert [hindsight.tokens(b) for b in range(7)] == [2, 3, 4, 4, 4.5, 4.5, 4.75]


def test_regret_is_never_negative_and_price_never_free():
    cheap = Hindsight(dataclasses.replace(OUTCOME, measured_ms=0.5), MS)
    assert cheap.ms(0) == pytest.approx(0.05)
    assert all(cheap.regret(b, cap) >= 0 for b in range(7) for cap in (0, 1, 3))
