"""Compiled: what a step costs as its budget grows, and the ratio that a search maximises."""

from __future__ import annotations

from typing import Any, NamedTuple

from specsched_protocol.compiling import njit

from specsched_scheduler.decision.cost import MIN_PRICE_MS, CostTable

__all__ = [
    "Objective",
    "draft_ms_at",
    "price_at",
    "price_floor_at",
    "stair_end_at",
    "verify_ms_at",
]


class Objective(NamedTuple):
    """(W + sum of gains) / price(B), all but the gains.

    total_weight: W. max_weight: no gain exceeds it. num_rows: T. draft_ms: of N requests. chunk_ms:
    verify_ms[T] - verify_ms[T - P], left out of the price. context_ms: of the requests that sample,
    relative to the profiled context.
    """

    table: CostTable
    total_weight: float
    max_weight: float
    num_rows: int
    draft_ms: float
    chunk_ms: float
    context_ms: float


@njit(cache=True, nogil=True)
def _lookup(curve: Any, slope: float, index: int) -> Any:
    last = len(curve) - 1
    return curve[index] if index <= last else curve[last] + slope * (index - last)


@njit(cache=True, nogil=True)
def verify_ms_at(table: CostTable, rows: int) -> Any:
    """Cost of a step of so many rows."""
    return _lookup(table.verify_ms, table.verify_slope_ms, rows)


@njit(cache=True, nogil=True)
def draft_ms_at(table: CostTable, num_requests: int, num_draft_tokens: int) -> Any:
    """Cost of drafts of this length for so many requests: the cheapest profiled one long enough."""
    if num_draft_tokens == 0:
        return 0.0
    cheapest = _lookup(table.draft_ms, table.draft_slope_ms, num_requests)
    for index in range(len(table.short_draft_tokens)):
        if table.short_draft_tokens[index] >= num_draft_tokens:
            slope = table.short_draft_slope_ms[index]
            cheapest = min(cheapest, _lookup(table.short_draft_ms[index], slope, num_requests))
    return cheapest


@njit(cache=True, nogil=True)
def _combine(objective: Objective, verify_ms: float) -> Any:
    table_ms = max(objective.draft_ms + verify_ms - objective.chunk_ms, MIN_PRICE_MS)
    return max(table_ms + objective.context_ms, table_ms / 10.0)


@njit(cache=True, nogil=True)
def price_at(objective: Objective, budget: int) -> Any:
    """price(B), in ms."""
    return _combine(objective, verify_ms_at(objective.table, objective.num_rows + budget))


@njit(cache=True, nogil=True)
def stair_end_at(objective: Objective, budget: int) -> Any:
    """The largest budget of the run of equal prices that this one is in."""
    row, stair_end = objective.num_rows + budget, objective.table.stair_end
    return (stair_end[row] if row < len(stair_end) else row) - objective.num_rows


@njit(cache=True, nogil=True)
def price_floor_at(objective: Objective, budget: int) -> Any:
    """A lower bound on the price of this budget and of every larger one, in ms."""
    table = objective.table
    rows = objective.num_rows + budget
    return _combine(objective, _lookup(table.verify_floor_ms, table.verify_slope_ms, rows))
