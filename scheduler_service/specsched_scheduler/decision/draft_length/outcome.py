"""Compiled: what one step tells of its drafts, position by position."""

from __future__ import annotations

from typing import Any

from specsched_protocol.compiling import njit
from specsched_protocol.shm.report_ring import (
    CONTEXT_TOKENS,
    NUM_PREFILL_TOKENS,
    NUM_SAMPLING,
    NUM_TOKENS,
)

from specsched_scheduler.decision._price import draft_ms_at, verify_ms_at

__all__ = ["outcome_of", "speed_of"]


@njit(cache=True, nogil=True)
def outcome_of(steps: Any, step: int, table: Any, gain: Any, extra: Any) -> None:
    """Accepted drafts per request, and their price, of one of FinishedSteps that samples.

    gain, extra: float64 [k] out, see the package. The time is that of the cost model for the rows
    that were run, so that a hiccup of the machine teaches nothing; a prefill chunk is charged to
    nobody, as in the decision.

    Where drafts were left out, all that were verified share alike what that cost: a budget ends
    where a captured size is full, and would with shorter drafts too, so that no position by itself
    is to blame for a stair. Where none was, there is nothing else to fill a size with: a position
    costs what its rows add to those of the positions before it.
    """
    num_sampling = steps.words[NUM_SAMPLING, step]
    num_rows = steps.words[NUM_TOKENS, step]
    gain[:] = 0.0
    extra[:] = 0.0  # at first the drafts that a position had
    longest = 0
    for row in range(steps.row_begin[step], steps.row_begin[step + 1]):
        num_rows -= steps.num_verified[row]
        longest = max(longest, steps.num_verified[row])
        for position in range(len(gain)):
            if position < steps.num_verified[row]:
                extra[position] += 1.0
            if position < steps.num_accepted[row]:
                gain[position] += 1.0
    num_rows = max(num_rows, 0)
    num_plain_rows = max(num_rows - steps.words[NUM_PREFILL_TOKENS, step], 0)
    relative = steps.words[CONTEXT_TOKENS, step] - table.profiled_context * num_sampling
    without_chunk = verify_ms_at(table, num_plain_rows)
    base_ms = max(without_chunk + table.context_ms_per_token * relative, without_chunk / 10.0)
    num_drafts = int(extra.sum())
    rows_ms = verify_ms_at(table, num_rows + num_drafts) - verify_ms_at(table, num_rows)
    ms_per_draft = rows_ms / max(num_drafts, 1)
    leaves_none_out = num_drafts == longest * num_sampling
    before_ms = verify_ms_at(table, num_rows)
    for position in range(len(gain)):
        gain[position] /= num_sampling
        shorter_ms = draft_ms_at(table, num_sampling, position)
        drafting_ms = draft_ms_at(table, num_sampling, position + 1) - shorter_ms
        verifying_ms = extra[position] * ms_per_draft
        if leaves_none_out:
            num_rows += int(extra[position])
            after_ms = verify_ms_at(table, num_rows)
            verifying_ms, before_ms = after_ms - before_ms, after_ms
        extra[position] = (verifying_ms + drafting_ms) / base_ms


@njit(cache=True, nogil=True)
def speed_of(gain: Any, extra: Any, num_positions: int) -> Any:
    """Of drafts of so many positions, against none."""
    gains, extras = 0.0, 0.0
    for position in range(num_positions):
        gains += gain[position]
        extras += extra[position]
    return (1.0 + gains) / (1.0 + extras)
