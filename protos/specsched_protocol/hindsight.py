"""What another decision would have brought a step whose outcome is known.

A draft that was verified has an outcome, and one behind a rejected draft is known to be lost. Only
drafts behind a wholly accepted prefix are open; they count with their confidence. So with a_j = 1
for an accepted draft and c_j the confidence of an open one,

    tokens(B) = N + sum over the B best drafts of (a_j if known, else the product of open c up to j)
    ms(B)     = max(measured + verify_ms[T + B] - verify_ms[T + B_run], measured / 10)
    regret(B) = (max over B' of tokens(B') / ms(B') - tokens(B) / ms(B)) * measured

The B best are ranked as the executor ranks them: weight * survival, then position, then row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specsched_protocol.plan import NO_BUDGET_CAP

__all__ = ["Hindsight", "StepOutcome", "ms_by_budget"]

_MIN_PRICE_SHARE = 0.1

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A finished step, by request that sampled.

    num_drafts (present), num_verified, num_accepted: int64 [N]. confidence: float64 [N, k], not a
    number where nobody knows. weight: float64 [N]. num_other_tokens: T. measured_ms: of the step,
    draft and verification; above 0.
    """

    num_drafts: Ints
    num_verified: Ints
    num_accepted: Ints
    confidence: Floats
    weight: Floats
    num_other_tokens: int
    measured_ms: float


class Hindsight:
    """Judges decisions for one step. verify_ms: float64, cost by rows; at least T + drafts + 1."""

    def __init__(self, outcome: StepOutcome, verify_ms: Floats) -> None:
        self._num_sampling = len(outcome.num_drafts)
        self._measured_ms = outcome.measured_ms
        self._gain, self._position = _ranked_gains(outcome)
        self._ms = ms_by_budget(outcome, verify_ms)
        self._run_tokens = float(self._num_sampling + outcome.num_accepted.sum())
        best = self._tokens_by_budget(NO_BUDGET_CAP) / self._ms
        self._best_rate = max(float(best.max()), self._run_tokens / self._measured_ms)

    def tokens(self, budget: int, max_verify_len: int = NO_BUDGET_CAP) -> float:
        """Tokens the step would have brought."""
        by_budget = self._tokens_by_budget(max_verify_len)
        return float(by_budget[min(budget, len(by_budget) - 1)])

    def ms(self, budget: int, max_verify_len: int = NO_BUDGET_CAP) -> float:
        """What it would have cost."""
        num_eligible = int((self._position < max_verify_len).sum())
        return float(self._ms[min(budget, num_eligible)])

    def regret(self, budget: int, max_verify_len: int = NO_BUDGET_CAP) -> float:
        """Tokens lost against the best budget, 0 or more."""
        rate = self.tokens(budget, max_verify_len) / self.ms(budget, max_verify_len)
        return max(0.0, (self._best_rate - rate) * self._measured_ms)

    def run_regret(self) -> float:
        """The regret of what was run, by what was measured."""
        return max(0.0, self._best_rate * self._measured_ms - self._run_tokens)

    def _tokens_by_budget(self, max_verify_len: int) -> Floats:
        """Tokens by budget, from 0 to all eligible drafts: float64 [eligible + 1]."""
        gain = self._gain[self._position < max_verify_len]
        return self._num_sampling + np.concatenate(([0.0], np.cumsum(gain)))


def ms_by_budget(outcome: StepOutcome, verify_ms: Floats) -> Floats:
    """ms(B) of the module's formula for B from 0 to all drafts: float64 [drafts + 1].

    verify_ms: float64, cost by rows; beyond its end the last one.
    """
    budgets = np.arange(int(outcome.num_drafts.sum()) + 1)
    rows = np.minimum(outcome.num_other_tokens + budgets, len(verify_ms) - 1)
    run = min(outcome.num_other_tokens + int(outcome.num_verified.sum()), len(verify_ms) - 1)
    price = outcome.measured_ms + verify_ms[rows] - verify_ms[run]
    ms: Floats = np.maximum(price, outcome.measured_ms * _MIN_PRICE_SHARE)
    return ms


def _ranked_gains(outcome: StepOutcome) -> tuple[Floats, Ints]:
    """(what each draft brings, its position), best ranked first."""
    k = outcome.confidence.shape[1]
    position = np.arange(k)
    confidence = np.nan_to_num(outcome.confidence, nan=0.5).clip(0.0, 1.0)
    is_present = position < outcome.num_drafts[:, None]
    is_known = position < outcome.num_verified[:, None]
    is_lost = (outcome.num_accepted < outcome.num_verified)[:, None]
    rank = outcome.weight[:, None] * np.cumprod(confidence, axis=1)
    open_survival = np.cumprod(np.where(is_known, 1.0, confidence), axis=1)
    beyond = np.where(is_lost, 0.0, open_survival)
    gain = np.where(is_known, position < outcome.num_accepted[:, None], beyond)
    rows, columns = np.nonzero(is_present)
    order = np.lexsort((rows, columns, -rank[rows, columns]))
    return gain[rows, columns][order].astype(np.float64), columns[order].astype(np.int64)
