"""Compiled: what drafts are expected to bring and to cost at each batch size.

From how sure recent drafts were (Survivals) and what steps cost. Of 2^load requests the best
positions of all drafts are verified, as many as bring the most tokens per time:

    speed(L) = max over b of (1 + mean of the b surest survivals) * base / (base + draft + rows(b))
"""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_protocol.compiling import njit

from specsched_scheduler.decision._price import draft_ms_at, verify_ms_at
from specsched_scheduler.decision.draft_length.loads import (
    MAX_PROBE_PERIOD_OFF,
    NUM_LOADS,
    min_probe_period,
    next_longer,
)
from specsched_scheduler.decision.draft_length.plan import MIN_PROBE_STEPS
from specsched_scheduler.decision.draft_length.repricing import base_ms_at

__all__ = ["affordable_period", "expect"]

PROBE_SHARE = 0.01
"""Of the time may go to probes, as far as their period has room for that."""


@njit(cache=True, nogil=True)
def expect(loads: Any, survivals: Any, context_tokens: float, table: Any) -> None:
    """Renew expected_gain and expected_extra of LoadStates.

    survivals: float64 [q, k], of as many typical drafts. context_tokens: of a request.
    """
    tokens = _tokens_by_rows(survivals)
    for load in range(NUM_LOADS):
        if load > 0 and (1 << load) >= len(table.verify_ms):  # prices beyond are extrapolated
            loads.expected_gain[load] = loads.expected_gain[load - 1]
            loads.expected_extra[load] = loads.expected_extra[load - 1]
        else:
            _expect_at(loads, load, tokens, len(survivals), context_tokens, table)


@njit(cache=True, nogil=True)
def affordable_period(loads: Any, load: int, table: Any) -> Any:
    """Steps from probe to probe at least, so that what they are expected to add is PROBE_SHARE."""
    present, longer = loads.draft_tokens[load], next_longer(loads, load, table)
    extra = max(loads.expected_extra[load, present:longer].sum(), 0.0)
    period = np.int64(np.ceil(MIN_PROBE_STEPS * extra / PROBE_SHARE))
    return max(min_probe_period(load), min(period, MAX_PROBE_PERIOD_OFF))


@njit(cache=True, nogil=True)
def _tokens_by_rows(survivals: Any) -> Any:
    """float64 [k, q k + 1]: per draft of at most L + 1 tokens, what the i surest positions of all q
    drafts bring; positions that are not there bring nothing more."""
    num_drafts, max_length = survivals.shape
    tokens = np.zeros((max_length, num_drafts * max_length + 1))
    for length in range(1, max_length + 1):
        surest = np.sort(survivals[:, :length].copy().ravel())[::-1]
        total = 0.0
        for row in range(tokens.shape[1] - 1):
            if row < len(surest):
                total += surest[row] / num_drafts
            tokens[length - 1, row + 1] = total
    return tokens


@njit(cache=True, nogil=True)
def _expect_at(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    loads: Any, load: int, tokens: Any, num_drafts: int, context_tokens: float, table: Any
) -> None:
    num_requests = 1 << load
    plain_ms = verify_ms_at(table, num_requests)
    base_ms = base_ms_at(table, num_requests, context_tokens)
    gain_before, extra_before = 0.0, 0.0
    for length in range(1, tokens.shape[0] + 1):
        draft_ms = draft_ms_at(table, num_requests, length)
        best_speed, gain, extra = 0.0, 0.0, 0.0
        for row in range(num_drafts * length + 1):
            rows_ms = _between(table, num_requests * (1.0 + row / num_drafts)) - plain_ms
            share = (draft_ms + rows_ms) / base_ms
            speed = (1.0 + tokens[length - 1, row]) / (1.0 + share)
            if speed > best_speed:
                best_speed, gain, extra = speed, tokens[length - 1, row], share
        loads.expected_gain[load, length - 1] = gain - gain_before
        loads.expected_extra[load, length - 1] = extra - extra_before
        gain_before, extra_before = gain, extra


@njit(cache=True, nogil=True)
def _between(table: Any, rows: float) -> Any:
    """Cost of a step by its mean number of rows."""
    low = np.int64(rows)
    low_ms = verify_ms_at(table, low)
    return low_ms + (rows - low) * (verify_ms_at(table, low + 1) - low_ms)
