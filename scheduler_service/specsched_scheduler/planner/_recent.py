"""Entries of the decision ring as records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from specsched_protocol.plan import StepDecision
from specsched_protocol.shm import lane

from specsched_scheduler.planner import _ring as ring
from specsched_scheduler.planner.records import RecentDecision

__all__ = ["unpack_entry"]


def unpack_entry(entry: npt.NDArray[np.int64]) -> RecentDecision:
    """The record of one entry, int64 [ENTRY_WORDS]."""
    words, floats = entry.tolist(), entry.view(np.float64)
    decision = StepDecision(
        step_id=words[lane.STEP_ID],
        source_step_id=words[lane.SOURCE_STEP_ID],
        epoch=words[lane.EPOCH],
        budget=words[lane.BUDGET],
        max_verify_len=words[lane.MAX_VERIFY_LEN],
        next_draft_tokens=words[lane.NEXT_DRAFT_TOKENS],
        expected_tokens=float(floats[lane.EXPECTED_TOKENS_BITS]),
        expected_ms=float(floats[lane.EXPECTED_MS_BITS]),
        policy_id=words[lane.POLICY_ID],
        model_state=words[lane.MODEL_STATE],
        flags=words[lane.FLAGS],
        num_repaired_confidences=words[lane.NUM_REPAIRED],
        decided_ns=words[lane.DECIDED_NS],
        fairness=float(floats[lane.FAIRNESS_BITS]),
    )
    return RecentDecision(
        index=words[ring.INDEX],
        decision=decision,
        num_requests=words[ring.NUM_REQUESTS],
        num_draft_tokens=words[ring.NUM_DRAFTS],
        plan_us=words[ring.PLAN_NS] / 1e3,
    )
