"""A step and its outcome as one row of a trace."""

from __future__ import annotations

from typing import Any

from specsched_protocol.plan import NO_BUDGET_CAP, StepReport
from specsched_protocol.shm import plan_arrays as words

from specsched_scheduler.planner import TapedStep

__all__ = ["to_row"]


def to_row(step: TapedStep, report: StepReport | None) -> dict[str, Any]:
    """The columns of `schema.SCHEMA`. report: None where it never came."""
    decision, fixed = step.decision.decision, step.fixed.tolist()
    num_confidences = step.num_confidences.tolist()
    confidence = [
        [value if place < count else None for place, value in enumerate(row)]
        for row, count in zip(step.confidence.tolist(), num_confidences, strict=True)
    ]
    row = {
        "step_id": decision.step_id,
        "source_step_id": decision.source_step_id,
        "decided_ns": decision.decided_ns,
        "num_other_tokens": fixed[words.NUM_OTHER_TOKENS],
        "num_prefill_tokens": fixed[words.NUM_PREFILL_TOKENS],
        "max_budget": _or_none(fixed[words.MAX_BUDGET]),
        "slot_id": step.slot_id,
        "generation": step.generation,
        "num_draft_tokens": step.num_draft_tokens,
        "samples": step.samples.astype(bool),
        "is_greedy": step.is_greedy.astype(bool),
        "weight": step.weight,
        "context_tokens": step.context_tokens,
        "num_confidences": num_confidences,
        "confidence": confidence,
        "budget": decision.budget,
        "max_verify_len": _or_none(decision.max_verify_len),
        "next_draft_tokens": decision.next_draft_tokens,
        "expected_tokens": decision.expected_tokens,
        "expected_ms": decision.expected_ms,
        "policy_id": decision.policy_id,
        "model_state": decision.model_state,
        "flags": decision.flags,
        "plan_us": step.decision.plan_us,
    }
    return row if report is None else row | _outcome(report)


def _outcome(report: StepReport) -> dict[str, Any]:
    return {
        "num_tokens": report.num_tokens,
        "padded_num_tokens": report.padded_num_tokens,
        "asked_draft_tokens": report.asked_draft_tokens,
        "draft_ms": report.draft_ms,
        "verify_ms": report.verify_ms,
        "outcome_slot_id": report.slot_id,
        "outcome_generation": report.generation,
        "num_verified": report.num_verified,
        "num_accepted": report.num_accepted,
        "teaches": report.teaches.astype(bool),
    }


def _or_none(cap: int) -> int | None:
    return None if cap == NO_BUDGET_CAP else cap
