"""Compiling what learning runs, before it would compile beside served steps."""

from __future__ import annotations

import numpy as np
from specsched_protocol.shm import report_ring as ring
from specsched_protocol.shm.layout import REPORT_FIXED_WORDS

from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.decision.finished import FinishedSteps
from specsched_scheduler.learning.learner import ExecutorKind, Learner
from specsched_scheduler.learning.pairing import Classified, DraftedSteps

__all__ = ["warm_up_learning"]

_PROFILE = CostModel(verify={1: [1.0], 2: [1.5], 4: [2.0]}, capture_limit=4, draft={1: [0.1]})
_NUM_STEPS = 300
"""Enough for a fit of the calibration and of the cost."""


def warm_up_learning() -> tuple[DraftedSteps, Classified]:
    """Learn from steps of one request with a draft of one token, as a served executor's are
    learned from; returns the drafts and what became of them, for whoever else looks at those."""
    learner = Learner(ExecutorKind("", "", max_draft_tokens=1), _PROFILE)
    paired: list[Classified] = []
    learner.on_paired = paired.append
    drafted = _drafted()
    learner.observe(_finished(), drafted)
    learner.update()
    learner.set_profile(_PROFILE, "another")  # what was learned is priced anew
    return drafted, paired[0]


def _drafted() -> DraftedSteps:
    steps = np.arange(_NUM_STEPS)
    return DraftedSteps(
        source_step_id=steps,
        row_begin=np.arange(_NUM_STEPS + 1),
        slot_id=np.zeros(_NUM_STEPS, dtype=np.uint32),
        generation=steps.astype(np.uint32),  # fits go by requests
        is_greedy=np.ones(_NUM_STEPS, dtype=np.bool_),
        confidence=np.linspace(0.1, 0.9, _NUM_STEPS, dtype=np.float32)[:, None],
    )


def _finished() -> FinishedSteps:
    steps = np.arange(_NUM_STEPS)
    words = np.zeros((REPORT_FIXED_WORDS, _NUM_STEPS), dtype=np.int64)
    words[ring.STEP_ID] = steps + 1
    words[[ring.NUM_TOKENS, ring.PADDED_NUM_TOKENS]] = 2
    words[[ring.NUM_ROWS, ring.NUM_SAMPLING, ring.ASKED_DRAFT_TOKENS]] = 1
    words.view(np.float64)[[ring.VERIFY_MS_BITS, ring.DRAFT_MS_BITS]] = 1.0
    return FinishedSteps(
        words=words,
        row_begin=np.arange(_NUM_STEPS + 1),
        slot_id=np.zeros(_NUM_STEPS, dtype=np.uint32),
        generation=steps.astype(np.uint32),
        num_verified=np.ones(_NUM_STEPS, dtype=np.uint32),
        num_accepted=(steps % 2).astype(np.uint32),
        teaches=np.ones(_NUM_STEPS, dtype=np.bool_),
    )
