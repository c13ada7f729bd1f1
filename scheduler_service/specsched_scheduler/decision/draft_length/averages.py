"""Compiled: averages of what drafts brought and cost by position, and how sure they are.

What is expected counts as some request-steps of what was seen, fewer as far as that differs by more
than chance: it rests on confidences, which may be wrong.

The functions take LoadStates and the batch size that they are about, as log2 of its requests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_protocol.compiling import njit

__all__ = ["age", "is_clear", "is_seen", "learn", "renew_speed", "speed_error"]

MEMORY_STEPS, MEMORY_REQUEST_STEPS = 64, 2048
"""What the averages remember of positions that are drafted: whichever is more."""
PROBE_MEMORY_STEPS, PROBE_MEMORY_REQUEST_STEPS = 16, 64
"""The same of positions seen in probes only."""
EXPECTED_REQUEST_STEPS = 128.0
"""What is expected counts as so many, as long as nothing speaks against it."""
AGED_STEPS, AGED_REQUEST_STEPS = 4, 64
"""As so many counts, whichever is more, what was seen before the load was another."""
DOUBT_ERRORS = 2.0
"""A difference of so many standard errors from what was seen is put down to chance. What is farther
off counts less with the sixth power of that: a wrong belief is soon of no account."""
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
    """After the averages, or what is expected, changed."""
    loads.trust[load] = _trust(loads, load)
    gains, extras = 0.0, 0.0
    for position in range(loads.gain.shape[1]):
        gains += _mixed(loads, load, position, loads.gain, loads.expected_gain)
        extras += _mixed(loads, load, position, loads.extra, loads.expected_extra)
        loads.speed[load, position + 1] = (1.0 + gains) / (1.0 + extras)


@njit(cache=True, nogil=True)
def age(loads: Any, load: int) -> None:
    """The load was another for a while: what was seen before may hold no more."""
    most = max(AGED_STEPS * 2.0**load, AGED_REQUEST_STEPS)
    loads.evidence[load] = np.minimum(loads.evidence[load], most)
    renew_speed(loads, load)


@njit(cache=True, nogil=True)
def _mixed(loads: Any, load: int, position: int, seen: Any, expected: Any) -> Any:
    evidence, trust = loads.evidence[load, position], loads.trust[load]
    weight = evidence / (evidence + trust) if evidence + trust > 0.0 else 1.0
    return weight * seen[load, position] + (1.0 - weight) * expected[load, position]


@njit(cache=True, nogil=True)
def _trust(loads: Any, load: int) -> Any:
    """By how far what is expected of the positions that were seen is from what they brought."""
    if not loads.expected_gain[load].any():
        return 0.0
    expected, seen, evidence = 0.0, 0.0, np.inf
    for position in range(loads.gain.shape[1]):
        if loads.evidence[load, position] == 0.0:
            break
        expected += loads.expected_gain[load, position]
        seen += loads.gain[load, position]
        evidence = min(evidence, loads.evidence[load, position])
    if evidence == np.inf:
        return EXPECTED_REQUEST_STEPS
    mean = max(expected, 1.0 / EXPECTED_REQUEST_STEPS)
    errors = np.abs(seen - expected) / np.sqrt(mean * (1.0 + mean) / evidence)
    return EXPECTED_REQUEST_STEPS / max(1.0, (errors / DOUBT_ERRORS) ** 6)


@njit(cache=True, nogil=True)
def is_seen(loads: Any, load: int, length: int, least: float) -> Any:
    """Whether all positions of drafts of this length were seen in so many request-steps."""
    return (loads.seen[load, :length] >= least).all()


@njit(cache=True, nogil=True)
def speed_error(loads: Any, load: int, length: int, present: int, is_early: bool) -> Any:
    """Standard error of the difference between the speeds of two lengths, by what was seen.

    Of m positions between them, of which the i-th is accepted with probability p_i, a draft brings
    X tokens, of variance sum of (2 i - 1) p_i - (sum of p_i)^2. Early, when drafts of few steps are
    known, which have much in common, it is taken to vary as a geometric one does, of the same mean.
    """
    extras, mean, squares, evidence = 0.0, 0.0, 0.0, np.inf
    shorter = min(length, present)
    for position in range(max(length, present)):
        if position < length:
            extras += _mixed(loads, load, position, loads.extra, loads.expected_extra)
        if position >= shorter:
            gain = _mixed(loads, load, position, loads.gain, loads.expected_gain)
            mean += gain
            squares += (2 * (position - shorter) + 1) * gain
        evidence = min(evidence, loads.evidence[load, position] + loads.trust[load])
    evidence = max(evidence, 1.0)
    least = 1.0 / evidence
    early_mean = max(abs(mean), least)
    variance = early_mean * (1.0 + early_mean) if is_early else squares - mean * mean
    return np.sqrt(max(variance, least) / evidence) / (1.0 + extras)


@njit(cache=True, nogil=True)
def is_clear(loads: Any, load: int, length: int, present: int) -> Any:
    """Whether one length is faster than the present one by more than chance, early as it is."""
    lead = loads.speed[load, length] - loads.speed[load, present]
    return lead > CLEAR_ERRORS * speed_error(loads, load, length, present, True)
