"""Compiled: averages of what drafts brought and cost by position, and how sure they are.

The functions take LoadStates and the batch size that they are about, as log2 of its requests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_protocol.compiling import njit

__all__ = ["is_clear", "is_seen", "learn", "renew_speed"]

MEMORY_STEPS, MEMORY_REQUEST_STEPS = 64, 2048
"""What the averages remember of positions that are drafted: whichever is more."""
PROBE_MEMORY_STEPS, PROBE_MEMORY_REQUEST_STEPS = 16, 64
"""The same of positions seen in probes only."""
CLEAR_ERRORS = 3.0
"""A difference of so many of its standard errors is none of chance."""


@njit(cache=True, nogil=True)
def learn(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    loads: Any, load: int, gain: Any, extra: Any, num_sampling: int, num_known: int
) -> None:
    """Take in a step's first `num_known` positions; those beyond the present length are probes."""
    for position in range(num_known):
        memory = max(PROBE_MEMORY_STEPS * num_sampling, PROBE_MEMORY_REQUEST_STEPS)
        if position < loads.draft_tokens[load]:
            memory = max(MEMORY_STEPS * num_sampling, MEMORY_REQUEST_STEPS)
        evidence = min(loads.evidence[load, position] + num_sampling, float(memory))
        share = num_sampling / evidence
        loads.evidence[load, position] = evidence
        loads.gain[load, position] += share * (gain[position] - loads.gain[load, position])
        loads.extra[load, position] += share * (extra[position] - loads.extra[load, position])
        loads.seen[load, position] += num_sampling
    renew_speed(loads, load)


@njit(cache=True, nogil=True)
def renew_speed(loads: Any, load: int) -> None:
    """After the averages changed."""
    gains, extras = 0.0, 0.0
    for position in range(loads.gain.shape[1]):
        gains += loads.gain[load, position]
        extras += loads.extra[load, position]
        loads.speed[load, position + 1] = (1.0 + gains) / (1.0 + extras)


@njit(cache=True, nogil=True)
def is_seen(loads: Any, load: int, length: int, least: float) -> Any:
    """Whether all positions of drafts of this length were seen in so many request-steps."""
    return (loads.seen[load, :length] >= least).all()


@njit(cache=True, nogil=True)
def is_clear(loads: Any, load: int, length: int, present: int) -> Any:
    """Whether one length is faster than the present one by more than chance.

    Accepted drafts are taken to vary as geometric ones do, whose variance is g (1 + g).
    """
    extras, between, evidence = 0.0, 0.0, np.inf
    for position in range(max(length, present)):
        if position < length:
            extras += loads.extra[load, position]
        if min(length, present) <= position:
            between += loads.gain[load, position]
        evidence = min(evidence, loads.evidence[load, position])
    evidence = max(evidence, 1.0)
    mean = max(between, 1.0 / evidence)
    error = np.sqrt(mean * (1.0 + mean) / evidence) / (1.0 + extras)
    difference = loads.speed[load, length] - loads.speed[load, present]
    return difference > CLEAR_ERRORS * error
