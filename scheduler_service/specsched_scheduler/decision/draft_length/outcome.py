"""What one step tells of its drafts, position by position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.plan import StepReport

from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.reference import draft_ms_by_length, verify_ms

__all__ = ["Floats", "Outcome", "outcome_of"]

Floats = npt.NDArray[np.float64]


class Outcome(NamedTuple):
    """gain, extra: float64 [k] each, see the package; only the first `num_known` positions count,
    those that drafts of this step and of the one before reached."""

    gain: Floats
    extra: Floats
    num_sampling: int
    num_known: int

    def speed(self) -> float:
        """That of the drafts as they were, against none."""
        gain, extra = self.gain[: self.num_known].sum(), self.extra[: self.num_known].sum()
        return float((1.0 + gain) / (1.0 + extra))


def outcome_of(
    report: StepReport, table: CostTable, max_draft_tokens: int, num_known: int
) -> Outcome:
    """Accepted drafts per request, and their price, of one step with `num_sampling` > 0.

    The time is that of the cost model for the rows that were run, so that a hiccup of the machine
    teaches nothing; a prefill chunk is charged to nobody, as in the decision.
    """
    num_sampling = report.num_sampling
    num_reached = _at_least(report.num_verified, max_draft_tokens)
    num_rows = report.num_tokens - int(report.num_verified.sum())
    rows = num_rows + np.concatenate([[0], np.cumsum(num_reached)])
    without_chunk = verify_ms(table, np.array([num_rows - report.num_prefill_tokens]))[0]
    relative = report.context_tokens - table.profiled_context * num_sampling
    base_ms = max(without_chunk + table.context_ms_per_token * relative, without_chunk / 10.0)
    drafts = draft_ms_by_length(table, num_sampling, max_draft_tokens)
    gain = _at_least(report.num_accepted, max_draft_tokens) / num_sampling
    extra = np.diff(verify_ms(table, rows) + drafts) / base_ms
    return Outcome(gain, extra, num_sampling, num_known)


def _at_least(counts: npt.NDArray[np.uint32], max_draft_tokens: int) -> npt.NDArray[np.int64]:
    """int64 [k]: how many counts exceed 0, 1, ..., k - 1."""
    occurrences = np.bincount(counts, minlength=max_draft_tokens + 1)
    exceeding: npt.NDArray[np.int64] = np.cumsum(occurrences[::-1])[::-1][1:]
    return exceeding[:max_draft_tokens]
