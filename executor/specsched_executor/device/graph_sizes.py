"""Which sizes are captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specsched_executor.profiling.options import draft_lengths

__all__ = ["GraphSizes", "default_rows", "parse_rows"]

_MAX_DEFAULT_ROWS = 2048
_MIN_PROMPT_ROWS = 16
_MAX_EVERY_LENGTH = 8
"""Longest drafts of which each shorter length is captured too."""


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """Rising sizes of the two grids; empty ones run eagerly.

    rows: of steps in which every request decodes. prompt_rows: of steps with prefill rows, whose
    queries may be as long as the step. draft_requests, draft_lens: of drafting.
    """

    rows: tuple[int, ...] = ()
    prompt_rows: tuple[int, ...] = ()
    draft_requests: tuple[int, ...] = ()
    draft_lens: tuple[int, ...] = ()

    @classmethod
    def of(cls, rows: Sequence[int], max_requests: int, max_draft_tokens: int) -> GraphSizes:
        """The grid for these rows: drafts of every length, of long ones full and ever half as long.

        Where requests come and go nearly every step has prompts, so such steps get the same sizes:
        a coarser grid would cost them rows that the price of a step knows nothing of.
        """
        coarse = _powers(_MIN_PROMPT_ROWS, max(rows))
        fine = (size for size in rows if size >= _MIN_PROMPT_ROWS)
        return cls(
            rows=tuple(rows),
            prompt_rows=tuple(sorted({*coarse, *fine})),
            draft_requests=_powers(1, max_requests),
            draft_lens=_draft_lens(max_draft_tokens),
        )


def default_rows(max_requests: int, max_draft_tokens: int, max_batched_tokens: int) -> list[int]:
    """About four sizes per doubling, up to a full verification of all requests or 2048 rows.

    Finer where a step is short: a padded row costs little, a missing size a whole stair.
    """
    full = min(max_requests * (max_draft_tokens + 1), max_batched_tokens)
    limit = max(min(full, _MAX_DEFAULT_ROWS), max_requests)
    sizes = {*range(1, min(limit, 8) + 1), limit}
    width = 8
    while width < limit:
        sizes |= set(range(width, min(2 * width, limit + 1), max(width // 4, 1)))
        width *= 2
    return sorted(sizes)


def parse_rows(sizes: Sequence[int], max_requests: int, max_batched_tokens: int) -> list[int]:
    """Checked capture sizes. Raises ValueError, naming the value and what is accepted."""
    wrong = [size for size in sizes if not 1 <= size <= max_batched_tokens]
    if wrong:
        raise ValueError(
            f"capture_sizes holds {wrong[0]}; accepted: 1 to max_num_batched_tokens,"
            f" {max_batched_tokens}"
        )
    if list(sizes) != sorted(set(sizes)):
        raise ValueError(f"capture_sizes is {list(sizes)}; accepted: rising sizes, none twice")
    if not sizes or sizes[-1] < max_requests:
        raise ValueError(
            f"capture_sizes is {list(sizes)}; accepted: the largest at least max_num_seqs,"
            f" {max_requests}, so that a step of all requests without drafts is captured"
        )
    return list(sizes)


def _draft_lens(max_draft_tokens: int) -> tuple[int, ...]:
    if max_draft_tokens <= _MAX_EVERY_LENGTH:
        return tuple(range(1, max_draft_tokens + 1))
    return draft_lengths(max_draft_tokens)


def _powers(first: int, limit: int) -> tuple[int, ...]:
    """Powers of two from `first` below `limit`, and `limit`."""
    sizes = []
    size = first
    while size < limit:
        sizes.append(size)
        size *= 2
    return (*sizes, limit)
