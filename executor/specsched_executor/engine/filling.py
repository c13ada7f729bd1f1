"""The budget of a step whose rows run in a captured size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["budget_of_size"]


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
