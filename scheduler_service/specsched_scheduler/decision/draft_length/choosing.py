"""Compiled: which draft length a batch size goes over to, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_protocol.compiling import njit

from specsched_scheduler.decision.draft_length.averages import is_clear, is_seen, speed_error
from specsched_scheduler.decision.draft_length.loads import NEVER

__all__ = ["best_length", "fastest_length", "min_steps_apart"]

MAX_LEAD, MAX_LEAD_SHORTER, MIN_LEAD = 0.02, 0.01, 0.002
"""By what share another length has to be better: the limits of what chance makes of it. Of a
shorter one all is known, and it needs no probes."""
LEAD_ERRORS = 2.0
"""So many standard errors are put down to chance: the more was seen, the less that is."""
REQUEST_STEPS_APART, MIN_STEPS_APART, MAX_STEPS_APART = 256, 16, 64
"""Request-steps between two changes at one batch size, and the limits of the steps that they take:
of many requests few steps tell whether the last change was right."""
EARLY_STEPS_APART, EARLY_LEAD = 8, 0.05
"""The same where the difference is clear and large: noise around a pivot is neither."""
MIN_EVIDENCE, MIN_EVIDENCE_STEPS = 256.0, 4.0
"""Request-steps, and steps, that a position must have been seen in before it moves the length."""
MIN_EVIDENCE_CLEAR = 32.0
"""The same where the difference is clear."""


@njit(cache=True, nogil=True)
def fastest_length(loads: Any, load: int) -> Any:
    """Where nothing was seen: the length that is expected to be fastest, none or else the present
    one if that is about as fast."""
    fastest, present = np.argmax(loads.speed[load]), loads.draft_tokens[load]
    about = loads.speed[load, fastest] / (1.0 + MAX_LEAD)
    if loads.speed[load, 0] >= about:
        return np.int64(0)
    return present if loads.speed[load, present] >= about else fastest


@njit(cache=True, nogil=True)
def min_steps_apart(load: int) -> Any:
    """Steps between two changes at batches of 2^load requests."""
    return min(max(REQUEST_STEPS_APART >> load, MIN_STEPS_APART), MAX_STEPS_APART)


@njit(cache=True, nogil=True)
def best_length(loads: Any, load: int, step_id: int, is_expected: bool) -> Any:
    """The fastest length that is known to be better than the present one, else that.

    is_expected: whether there were drafts to expect anything from.
    """
    changed_at = loads.changed_at[load]
    settled_after = min_steps_apart(load)
    steps_apart = settled_after if changed_at == NEVER else step_id - changed_at
    is_settled = steps_apart >= settled_after
    present = loads.draft_tokens[load]
    best, best_speed = present, -np.inf
    if steps_apart < EARLY_STEPS_APART:
        return best
    for length in range(loads.speed.shape[1]):
        speed = loads.speed[load, length]
        if length == present or speed <= best_speed:
            continue
        needed = _needed_lead(loads, load, length) if is_settled else EARLY_LEAD
        if speed <= loads.speed[load, present] * (1.0 + needed):
            continue
        if _is_known(loads, load, length, is_settled, is_expected):
            best, best_speed = length, speed
    return best


@njit(cache=True, nogil=True)
def _needed_lead(loads: Any, load: int, length: int) -> Any:
    """By what share a length has to be better where the last change is long ago.

    None at all has to be as good: what the host does for drafts is in no price.
    """
    present = loads.draft_tokens[load]
    if length == 0:
        return 0.0
    if present == 0:
        return MAX_LEAD
    error = speed_error(loads, load, length, present, False)
    chance = LEAD_ERRORS * error / loads.speed[load, present]
    return min(max(chance, MIN_LEAD), MAX_LEAD_SHORTER if length < present else MAX_LEAD)


@njit(cache=True, nogil=True)
def _is_known(loads: Any, load: int, length: int, is_settled: bool, is_expected: bool) -> Any:
    """Whether enough was seen to say that a length is better than the present one."""
    present = loads.draft_tokens[load]
    longer = max(length, present)
    least = max(MIN_EVIDENCE, MIN_EVIDENCE_STEPS * 2.0**load)
    if is_settled and is_seen(loads, load, longer, least):
        return True
    if is_expected or is_seen(loads, load, longer, MIN_EVIDENCE_CLEAR):
        return is_clear(loads, load, length, present)
    return False
