"""A step of which it can be said what other choices would have brought."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from specsched_protocol.plan import NO_BUDGET_CAP

__all__ = ["OracleStep", "best_first", "share_out"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OracleStep:
    """Drafts of one step by request that sampled, their outcome as far as it is known, and prices.

    survival: float64 [N, k], the drafter's own for these very drafts, by which the executor ranks
    them. num_drafts (present), num_verified (of known outcome), num_accepted:
    int64 [N]. group: int64 [N], equal for steps of one request. ms: float64 [B + 1], time of the
    step by budget, up to the largest allowed. choices: of each schedule that is judged, how many
    drafts of each request it verifies, int64 [N].
    """

    survival: Floats
    num_drafts: Ints
    num_verified: Ints
    num_accepted: Ints
    group: Ints
    ms: Floats
    choices: tuple[Ints, ...]

    def taken(self, verify_lens: Ints, outcome: Floats) -> tuple[float, float]:
        """(tokens, ms) of a choice, by what each draft brings."""
        is_verified = np.arange(outcome.shape[1]) < verify_lens[:, None]
        tokens = len(self.group) + float(outcome[is_verified].sum())
        return tokens, float(self.ms[int(verify_lens.sum())])

    @property
    def is_present(self) -> npt.NDArray[np.bool_]:
        """bool [N, k]."""
        return np.arange(self.survival.shape[1]) < self.num_drafts[:, None]

    def outcome(self, survival: Floats) -> Floats:
        """What each draft brings, float64 [N, k]: 1 or 0 where it is known, else its chance.

        survival: float64 [N, k], the probabilities to go by. A draft behind a rejected one is lost;
        one behind a wholly accepted prefix has the chance to survive given that prefix.
        """
        place = np.arange(survival.shape[1])
        verified = self.num_verified[:, None]
        before = np.take_along_axis(survival, np.maximum(verified - 1, 0), axis=1)
        reached = np.where(verified > 0, before, 1.0)
        chance = np.divide(survival, reached, out=np.zeros_like(survival), where=reached > 0)
        is_open = (self.num_accepted == self.num_verified)[:, None]
        known = (place < self.num_accepted[:, None]).astype(np.float64)
        return np.where(place < verified, known, np.where(is_open, chance, 0.0))


def best_first(score: Floats, is_present: npt.NDArray[np.bool_]) -> Ints:
    """Flat indices of the drafts present, by score, then position, then row, as executors rank."""
    rows, places = np.nonzero(is_present)
    order = np.lexsort((rows, places, -score[rows, places]))
    ranked: Ints = (rows * score.shape[1] + places)[order]
    return ranked


def share_out(
    score: Floats, num_drafts: Ints, budget: int, max_verify_len: int = NO_BUDGET_CAP
) -> Ints:
    """Verify lengths, int64 [N], of a budget that goes to the best drafts within the cap.

    score: float64 [N, k], never rising along a row; weight * survival.
    """
    k = score.shape[1]
    is_allowed = np.arange(k) < np.minimum(num_drafts, max_verify_len)[:, None]
    admitted = best_first(score, is_allowed)[:budget]
    return np.bincount(admitted // k, minlength=len(score)).astype(np.int64)
