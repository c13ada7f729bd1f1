"""Predicted against measured step times of a trace whose every number is known."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.json_format import MessageToJson
from specsched_protocol.v1 import plan_pb2
from specsched_scheduler.learning.errors import TraceError
from specsched_scheduler.trace.cost_truth import cost_truth
from specsched_scheduler.trace.schema import METADATA_PREFIX, SCHEMA
from specsched_scheduler.trace_command import trace as trace_command
from typer.testing import CliRunner

VERIFY_MS = {1: 1.0, 2: 2.0, 4: 3.0, 8: 5.0}
DRAFT_MS = 0.5
CONTEXT_MS, PROFILED_CONTEXT = 0.01, 100


def cost() -> str:
    model = plan_pb2.CostModel(capture_limit=8)
    for size, ms in VERIFY_MS.items():
        model.verify.add(tokens=size, ms=[ms])
    model.draft.add(requests=1, ms=[DRAFT_MS])
    model.context.ms_per_token = CONTEXT_MS
    model.context.profiled_tokens_per_request = PROFILED_CONTEXT
    return MessageToJson(model)


def step(step_id: int, *, rows: int, measured_ms: float, **changes):
    """A step of one request that drafts: `rows` of them, at the profiled context."""
    one = {name: [0] for name in ("slot_id", "generation", "outcome_slot_id", "outcome_generation")}
    row = {
        "step_id": step_id, "source_step_id": step_id - 2, "decided_ns": step_id,
        "num_other_tokens": 1, "num_prefill_tokens": 0, "max_budget": None, **one,
        "num_draft_tokens": [7], "samples": [True], "is_greedy": [False], "weight": [1.0],
        "context_tokens": [PROFILED_CONTEXT], "num_confidences": [7], "confidence": [[0.5] * 7],
        "budget": rows - 1, "max_verify_len": None, "next_draft_tokens": 7,
        "expected_tokens": 2.0, "expected_ms": measured_ms * 1.1, "policy_id": 1, "model_state": 1,
        "flags": 0, "plan_us": 20.0, "num_tokens": rows, "padded_num_tokens": rows,
        "asked_draft_tokens": 7, "draft_ms": DRAFT_MS, "verify_ms": measured_ms - DRAFT_MS,
        "num_verified": [rows - 1], "num_accepted": [1], "teaches": [True],
    }  # fmt: skip
    return row | changes


def write(path, rows):
    facts = {"max_draft_tokens": "7", "cost": cost(), "policy": "throughput"}
    schema = SCHEMA.with_metadata({METADATA_PREFIX + k: v for k, v in facts.items()})
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return path


def test_each_prediction_is_held_against_what_ran(tmp_path):
    rows = [step(3, rows=2, measured_ms=2.5), step(4, rows=4, measured_ms=7.0)]
    truth = cost_truth(write(tmp_path / "trace.parquet", rows))
    # 2.5 of 2.5 ms and 3.5 of 7 ms.
    assert truth["all"]["profile"] == pytest.approx(
        {"num_steps": 2, "bias": -3.5 / 9.5, "error": 0.25}
    )
    assert truth["all"]["learned"] == pytest.approx({"num_steps": 2, "bias": 0.1, "error": 0.1})
    assert truth["by_size"][2]["profile"]["error"] == pytest.approx(0)
    assert truth["by_size"][4]["profile"]["bias"] == pytest.approx(-0.5)


def test_context_is_priced_beyond_the_profiled_one(tmp_path):
    rows = [step(3, rows=2, measured_ms=3.0, context_tokens=[PROFILED_CONTEXT + 50])]
    truth = cost_truth(write(tmp_path / "trace.parquet", rows))
    assert truth["by_context"][256]["profile"]["bias"] == pytest.approx(-0.5 / 3)
    assert truth["by_context"][256]["context"]["bias"] == pytest.approx(0)


def test_a_promise_counts_only_where_its_budget_ran(tmp_path):
    rows = [
        step(3, rows=2, measured_ms=2.5),
        step(4, rows=2, measured_ms=2.5, budget=5),
        step(5, rows=2, measured_ms=2.5, num_prefill_tokens=1),
        step(6, rows=2, measured_ms=2.5, num_tokens=None),
    ]
    truth = cost_truth(write(tmp_path / "trace.parquet", rows))
    assert truth["num_steps"] == 2
    assert truth["all"]["learned"]["num_steps"] == 1
    assert truth["tokens"] == {"num_steps": 1, "bias": 0.0, "worst_block": None, "blocks": []}


def test_a_step_with_a_prompt_that_came_after_its_plan_request_is_left_out(tmp_path):
    late_prompt = step(4, rows=8, measured_ms=5.5, budget=1, num_verified=[1])
    path = write(tmp_path / "trace.parquet", [step(3, rows=2, measured_ms=2.5), late_prompt])
    assert list(cost_truth(path)["by_size"]) == [2]


def test_expected_tokens_are_compared_by_the_thousand(tmp_path):
    rows = [step(i, rows=2, measured_ms=2.5, expected_tokens=1.8) for i in range(3, 1503)]
    truth = cost_truth(write(tmp_path / "trace.parquet", rows))
    assert truth["tokens"]["blocks"] == [pytest.approx(-0.1)]
    assert truth["tokens"]["worst_block"] == pytest.approx(-0.1)


def test_a_trace_without_an_outcome_is_refused(tmp_path):
    path = write(tmp_path / "trace.parquet", [step(3, rows=2, measured_ms=2.5, num_tokens=None)])
    with pytest.raises(TraceError, match="no step without prefill has an outcome"):
        cost_truth(path)


def test_the_command_shows_a_line_for_each_group(tmp_path):
    path = write(tmp_path / "trace.parquet", [step(3, rows=2, measured_ms=5.0)])
    shown = CliRunner().invoke(trace_command, ["cost", str(path)])
    assert shown.exit_code == 0
    assert "size 2" in shown.stdout
    assert "-50.0% / 50.0%" in shown.stdout
    as_json = CliRunner().invoke(trace_command, ["cost", str(path), "--json"])
    assert json.loads(as_json.stdout)["num_steps"] == 1
