"""A plan request as JSON that is in order, and ways to spoil it."""

from __future__ import annotations

import copy
from typing import Any

GOOD: dict[str, Any] = {
    "max_draft_tokens": 3,
    "num_other_tokens": 4,
    "num_prefill_tokens": 2,
    "policy": "throughput",
    "max_budget": 6,
    "requests": [
        {"confidence": [0.9, None, 0.9], "num_draft_tokens": 3, "samples": True},
        {"confidence": None, "weight": 2, "context_tokens": 10},
    ],
    "cost": {
        "verify": [{"tokens": n, "ms": [5.0]} for n in (4, 8, 16)],
        "draft": [{"requests": 8, "ms": [0.5]}],
        "capture_limit": 16,
        "context": {"ms_per_token": 1e-5, "profiled_tokens_per_request": 100},
    },
}
DROP = object()


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with one field replaced; numbers in the path are list indices."""
    document = copy.deepcopy(GOOD)
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    target: Any = document
    for step in parents:
        target = target[step]
    if value is DROP:
        del target[last]
    else:
        target[last] = value
    return document
