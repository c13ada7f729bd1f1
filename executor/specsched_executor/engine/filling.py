"""Captured sizes that steps run in, and the budget of a step that runs in one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

__all__ = ["budget_of_size", "cheapest_sizes"]


def cheapest_sizes(sizes: Sequence[int], cost_ms: Mapping[int, float]) -> tuple[int, ...]:
    """Those of the rising sizes that are worth running in: none larger costs less, and of equal
    ones the smallest. cost_ms: by size; one without a cost is left out, the largest has one."""
    in_use: list[int] = []
    for size in reversed(sizes):
        if not in_use or cost_ms.get(size, float("inf")) <= cost_ms[in_use[-1]]:
            in_use.append(size)
    return tuple(reversed(in_use))


def budget_of_size(
    budget: int, num_other_tokens: int, planned_other_tokens: int | None, sizes: Sequence[int]
) -> int:
    """The budget that uses the captured size which runs the step as a plan with FILL_SIZE wants it.

    num_other_tokens: rows of the step that are no drafts; planned_other_tokens: as many as the plan
    counted on, None where nothing counted. sizes: captured rows, rising; more run eagerly.

    Rows that would be padding take drafts. Where more rows came than were planned and reach a
    little into a size, less than half of the way, drafts make room: the plan chose to end before
    that stair. Nothing here depends on the drafts that are there, so it may not change what is
    sampled.
    """
    num_rows = num_other_tokens + budget
    index = bisect_left(sizes, num_rows)
    if index == len(sizes):
        return budget
    size, below = sizes[index], sizes[index - 1] if index else 0
    is_planned = planned_other_tokens is None or below < planned_other_tokens + budget
    if is_planned or below < num_other_tokens or 2 * (num_rows - below) >= size - below:
        return size - num_other_tokens
    return below - num_other_tokens
