"""A small step and a cost table to decide on."""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_scheduler.decision import CostModel, DecisionInputs

TABLE = CostModel({4: [10.0], 5: [10.0], 8: [14.0], 16: [14.2]}, 16)
"""Filling the second stair does not pay, the third does."""


def step(**changes: Any) -> DecisionInputs:
    fields: dict[str, Any] = {
        "confidence": np.array(
            [[0.9, 0.5, 0.9], [0.6, 0.6, 0.6], [0.5, 0.9, 0.9], [0.2, 0.2, 0.2]]
        ),
        "num_draft_tokens": np.full(4, 3),
        "has_confidence": np.ones(4, dtype=bool),
        "samples": np.ones(4, dtype=bool),
        "weight": np.ones(4),
        "context_tokens": np.zeros(4, dtype=np.int64),
        "num_other_tokens": 4,
    }
    return DecisionInputs(**(fields | changes))
