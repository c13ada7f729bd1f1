"""Compiled: what was learned under old prices, at new ones.

What drafting takes is in the prices themselves. What verifying takes rests on how many drafts of a
position were verified; this is not known any more, but it changes as verifying all of them does:

    extra = drafting share + (extra before - drafting share before) * rows share / rows share before
"""

from __future__ import annotations

from typing import Any

from specsched_protocol.compiling import njit

from specsched_scheduler.decision._price import draft_ms_at, verify_ms_at
from specsched_scheduler.decision.draft_length.averages import renew_speed
from specsched_scheduler.decision.draft_length.loads import NUM_LOADS

__all__ = ["base_ms_at", "reprice"]


@njit(cache=True, nogil=True)
def base_ms_at(table: Any, num_requests: int, context_tokens: float) -> Any:
    """Cost of a step without drafts. context_tokens: of a request."""
    plain_ms = verify_ms_at(table, num_requests)
    relative = num_requests * (context_tokens - table.profiled_context)
    return max(plain_ms + table.context_ms_per_token * relative, plain_ms / 10.0)


@njit(cache=True, nogil=True)
def reprice(loads: Any, before: Any, after: Any, context_tokens: float) -> None:
    """Renew `extra` and `speed` of LoadStates by the change from one CostTable to another."""
    for load in range(NUM_LOADS):
        num_requests = 1 << load
        base_before = base_ms_at(before, num_requests, context_tokens)
        base_after = base_ms_at(after, num_requests, context_tokens)
        for position in range(loads.extra.shape[1]):
            if loads.evidence[load, position] == 0.0:
                continue
            drafting_before = _drafting_ms(before, num_requests, position) / base_before
            drafting = _drafting_ms(after, num_requests, position) / base_after
            rows_before = _rows_ms(before, num_requests, position) / base_before
            rows = _rows_ms(after, num_requests, position) / base_after
            verifying = loads.extra[load, position] - drafting_before
            if rows_before > 0.0:
                verifying *= rows / rows_before
            loads.extra[load, position] = drafting + verifying
        renew_speed(loads, load)


@njit(cache=True, nogil=True)
def _drafting_ms(table: Any, num_requests: int, position: int) -> Any:
    """Of one position more."""
    shorter_ms = draft_ms_at(table, num_requests, position)
    return draft_ms_at(table, num_requests, position + 1) - shorter_ms


@njit(cache=True, nogil=True)
def _rows_ms(table: Any, num_requests: int, position: int) -> Any:
    """Of verifying all drafts up to a position."""
    plain_ms = verify_ms_at(table, num_requests)
    return verify_ms_at(table, num_requests * (position + 2)) - plain_ms
