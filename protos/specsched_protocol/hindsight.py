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
from typing import Any

import numpy as np
import numpy.typing as npt

from specsched_protocol.compiling import njit
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
        num_sampling = len(outcome.num_drafts)
        self._num_sampling = num_sampling
        self._measured_ms = outcome.measured_ms
        self._gain, self._position = _ranked_gains(outcome)
        self._ms = ms_by_budget(outcome, verify_ms)
        self._run_tokens = float(num_sampling + outcome.num_accepted.sum())
        best_rate = float(_best_rate(num_sampling, self._gain, self._ms))
        self._best_rate = max(best_rate, self._run_tokens / self._measured_ms)

    def tokens(self, budget: int, max_verify_len: int = NO_BUDGET_CAP) -> float:
        """Tokens the step would have brought."""
        tokens, _ = _taken(self._gain, self._position, budget, max_verify_len)
        return float(self._num_sampling + tokens)

    def ms(self, budget: int, max_verify_len: int = NO_BUDGET_CAP) -> float:
        """What it would have cost."""
        _, num_drafts = _taken(self._gain, self._position, budget, max_verify_len)
        return float(self._ms[num_drafts])

    def regret(self, budget: int, max_verify_len: int = NO_BUDGET_CAP) -> float:
        """Tokens lost against the best budget, 0 or more."""
        rate = self.tokens(budget, max_verify_len) / self.ms(budget, max_verify_len)
        return max(0.0, (self._best_rate - rate) * self._measured_ms)

    def run_regret(self) -> float:
        """The regret of what was run, by what was measured."""
        return max(0.0, self._best_rate * self._measured_ms - self._run_tokens)


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
    counts = (outcome.num_drafts, outcome.num_verified, outcome.num_accepted)
    rank, gain, position = _gains(
        *(_fresh(count, np.int64) for count in counts),
        _fresh(outcome.confidence, np.float64),
        _fresh(outcome.weight, np.float64),
    )
    order = np.argsort(-rank, kind="stable")
    return gain[order], position[order]


def _fresh(values: npt.NDArray[Any], dtype: type[Any]) -> npt.NDArray[Any]:
    """A copy: compiled code would be compiled anew for arrays that are read-only or strided."""
    return np.array(values, dtype=dtype, order="C")


@njit(cache=True, nogil=True)
def _gains(
    num_drafts: Any, num_verified: Any, num_accepted: Any, confidence: Any, weight: Any
) -> Any:
    """(rank, what it brings, position) of each draft that is present, by position, then row."""
    num_rows, k = confidence.shape
    most = num_rows * k
    rank, gain, positions = np.empty(most), np.empty(most), np.empty(most, dtype=np.int64)
    survival, open_survival = weight.copy(), np.ones(num_rows)
    num_present = 0
    for position in range(k):
        for row in range(num_rows):
            if position >= num_drafts[row]:
                continue
            probability = _probability(confidence[row, position])
            survival[row] *= probability
            if position < num_verified[row]:
                value = 1.0 if position < num_accepted[row] else 0.0
            else:
                open_survival[row] *= probability
                value = open_survival[row] if num_accepted[row] == num_verified[row] else 0.0
            rank[num_present], gain[num_present] = survival[row], value
            positions[num_present] = position
            num_present += 1
    return rank[:num_present], gain[:num_present], positions[:num_present]


@njit(cache=True, nogil=True)
def _probability(confidence: Any) -> Any:
    """What is no number counts as even odds."""
    return 0.5 if np.isnan(confidence) else min(max(confidence, 0.0), 1.0)


@njit(cache=True, nogil=True)
def _best_rate(num_sampling: Any, gain: Any, ms: Any) -> Any:
    """max over B of tokens(B) / ms(B)."""
    tokens = float(num_sampling)
    best = tokens / ms[0]
    for budget in range(len(gain)):
        tokens += gain[budget]
        best = max(best, tokens / ms[budget + 1])
    return best


@njit(cache=True, nogil=True)
def _taken(gain: Any, position: Any, budget: Any, max_verify_len: Any) -> Any:
    """(what they bring, how many they are) of the `budget` best drafts below the cap."""
    tokens, num_drafts = 0.0, 0
    for index in range(len(gain)):
        if num_drafts >= budget:
            break
        if position[index] < max_verify_len:
            tokens += gain[index]
            num_drafts += 1
    return tokens, num_drafts
