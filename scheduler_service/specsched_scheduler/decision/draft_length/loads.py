"""What is known of drafts at each batch size, as compiled code takes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_scheduler.decision.draft_length.plan import MIN_PROBE_STEPS

__all__ = [
    "NEVER",
    "NUM_LOADS",
    "LoadState",
    "LoadStates",
    "min_probe_period",
    "nearest_load",
    "new_load_states",
    "next_longer",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NUM_LOADS = 21
"""Batches of up to 2^20 requests."""
MIN_PROBE_PERIOD, MAX_PROBE_PERIOD_OFF, MAX_PROBE_PERIOD = 32, 128, 512
"""Steps from probe to probe: the limits of the last two are without drafts, and with some. Between
the first two, never fewer than there are requests: a probe of many tells more, and costs more."""
NEVER = -1
_REACH = 0.6
"""How far from a power of two, in powers, a batch size still counts as the one before."""


class LoadState(NamedTuple):
    """What is known at batches of about 2^log2_requests; the arrays as in LoadStates."""

    log2_requests: int
    draft_tokens: int
    probe_period: int
    gain: Floats
    extra: Floats
    evidence: Floats
    seen: Floats


class LoadStates(NamedTuple):
    """First axis: log2 of the requests.

    gain, extra: float64 [L, k], averages by position, see the package. evidence: request-steps that
    they rest on, at most what is remembered; seen: those in which the position was ever drafted.
    expected_gain, expected_extra: float64 [L, k], see the module `expectation`. trust: float64 [L],
    request-steps that these count as. speed: float64 [L, k + 1], of each length. draft_tokens:
    int64 [L], the length that follows; changed_at: step of its last change, or NEVER. min_period:
    int64 [L], steps from probe to probe at least. Of the probes, int64 [L]: probe_period,
    probe_steps, num_probes, and num_promising, the last ones in a row; of the one under way
    num_probed steps, whose speeds add up to
    probed_speed, float64 [L].
    """

    gain: Floats
    extra: Floats
    evidence: Floats
    seen: Floats
    expected_gain: Floats
    expected_extra: Floats
    trust: Floats
    speed: Floats
    draft_tokens: Ints
    changed_at: Ints
    min_period: Ints
    probe_period: Ints
    probe_steps: Ints
    num_probes: Ints
    num_promising: Ints
    num_probed: Ints
    probed_speed: Floats


@njit(cache=True, nogil=True)
def min_probe_period(load: int) -> Any:
    """Of a batch of 2^load requests."""
    return min(max(MIN_PROBE_PERIOD, 1 << load), MAX_PROBE_PERIOD_OFF)


@njit(cache=True, nogil=True)
def nearest_load(present: int, num_requests: int) -> Any:
    """Log2 of a batch size, rounded; the present one (or NEVER) as long as it is about that."""
    size = np.log2(float(num_requests))
    if present != NEVER and abs(size - present) <= _REACH:
        return np.int64(present)
    return min(np.int64(np.rint(size)), NUM_LOADS - 1)


@njit(cache=True, nogil=True)
def next_longer(loads: Any, load: int, table: Any) -> Any:
    """The next profiled length beyond the present one, or full drafts."""
    longer = np.int64(loads.gain.shape[1])
    for length in table.short_draft_tokens[::-1]:
        if length > loads.draft_tokens[load]:
            longer = length
    return longer


def new_load_states(max_draft_tokens: int) -> LoadStates:
    """Nothing was seen and nothing is expected: full drafts everywhere."""
    gain, extra, evidence, seen, expected_gain, expected_extra = np.zeros(
        (6, NUM_LOADS, max_draft_tokens)
    )
    periods = np.array([min_probe_period(load) for load in range(NUM_LOADS)], dtype=np.int64)
    return LoadStates(
        gain,
        extra,
        evidence,
        seen,
        expected_gain,
        expected_extra,
        trust=np.zeros(NUM_LOADS),
        speed=np.ones((NUM_LOADS, max_draft_tokens + 1)),
        draft_tokens=np.full(NUM_LOADS, max_draft_tokens, dtype=np.int64),
        changed_at=np.full(NUM_LOADS, NEVER, dtype=np.int64),
        min_period=periods,
        probe_period=periods.copy(),
        probe_steps=np.full(NUM_LOADS, MIN_PROBE_STEPS, dtype=np.int64),
        num_probes=np.zeros(NUM_LOADS, dtype=np.int64),
        num_promising=np.zeros(NUM_LOADS, dtype=np.int64),
        num_probed=np.zeros(NUM_LOADS, dtype=np.int64),
        probed_speed=np.zeros(NUM_LOADS),
    )
