"""The decision in plain numpy: the definition that the compiled one is held to.

    survival[r, j] = product of confidence[r, 0..j]          gain = weight[r] * survival[r, j]
    table(B) = draft_ms[N] + verify_ms[T + B] - (verify_ms[T] - verify_ms[T - P])
    price(B) = max(table(B) + context_ms, table(B) / 10)
    ratio(B) = (W + sum of the B largest gains) / price(B)

Sums in float64: W in row order, gains in rank order. Only positive gains count: a draft that cannot
survive is never worth a row, not even a free one. Rank: gain, then position, then row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.codes import Feature
from specsched_scheduler.decision.cost import BOUND_MARGIN, MIN_PRICE_MS, CostTable
from specsched_scheduler.decision.inputs import DecisionInputs
from specsched_scheduler.decision.workspace import MEMORY_SAMPLES, RunningMean, new_running_mean

__all__ = ["Repaired", "StepView", "draft_ms", "repair", "verify_ms"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Repaired:
    """confidence: float64 [R, k], every value valid. is_present: bool [R, k], drafts that exist in
    rows that sample. num_repaired: single values replaced. num_prior_rows: rows that had none."""

    confidence: Floats
    is_present: npt.NDArray[np.bool_]
    num_repaired: int
    num_prior_rows: int


def repair(
    inputs: DecisionInputs, prior: RunningMean | None = None, left_out: int = Feature.NONE
) -> Repaired:
    """Replace every missing or impossible confidence by the mean of its position.

    The mean is that of the valid values of drafts present, over this step and those that `prior`
    has seen; 0.5 where there was none; 1 where the prior is left out. `prior` is updated in place;
    None: this step alone.
    """
    prior = prior or new_running_mean(inputs.max_draft_tokens)
    confidence = inputs.confidence.astype(np.float64)
    positions = np.arange(inputs.max_draft_tokens)
    is_present = inputs.samples[:, None] & (positions < inputs.num_draft_tokens[:, None])
    has_row = inputs.has_confidence[:, None]
    is_valid = has_row & (confidence >= 0.0) & (confidence <= 1.0)
    _update(prior, np.where(is_present & is_valid, confidence, 0.0), is_present & is_valid)
    typical = np.ones_like(prior.mean) if left_out & Feature.PRIOR else prior.mean
    return Repaired(
        confidence=np.where(is_valid, confidence, typical),
        is_present=is_present,
        num_repaired=int((is_present & has_row & ~is_valid).sum()),
        num_prior_rows=int((is_present.any(axis=1) & ~inputs.has_confidence).sum()),
    )


def _update(prior: RunningMean, values: Floats, is_valid: npt.NDArray[np.bool_]) -> None:
    total = prior.num_samples + is_valid.sum(axis=0)
    seen = total > 0
    step_sum = _sum_in_order(values)
    prior.mean[seen] = (prior.mean * prior.num_samples + step_sum)[seen] / total[seen]
    prior.num_samples[:] = np.minimum(total, MEMORY_SAMPLES)


def _sum_in_order(values: Floats) -> Floats:
    """Sum over the first axis, one by one: np.sum may pair terms and round otherwise."""
    return np.cumsum(values, axis=0)[-1] if len(values) else np.zeros(values.shape[1:])


def verify_ms(table: CostTable, rows: npt.NDArray[np.int64]) -> Floats:
    """Cost of steps of so many rows, in ms."""
    return _lookup(table.verify_ms, table.verify_slope_ms, rows)


def draft_ms(table: CostTable, num_requests: int, num_draft_tokens: int) -> float:
    """Cost of drafts of this length, in ms: of the cheapest profiled length that is enough."""
    return _cheapest(_draft_costs(table, num_requests), num_draft_tokens)


def _draft_costs(table: CostTable, num_requests: int) -> list[tuple[float, float]]:
    """(longest draft, its ms) of each curve; the full one is enough for any."""
    costs = [(math.inf, _at(table.draft_ms, float(table.draft_slope_ms), num_requests))]
    for length, curve, slope in zip(
        table.short_draft_tokens, table.short_draft_ms, table.short_draft_slope_ms, strict=True
    ):
        costs.append((float(length), _at(curve, float(slope), num_requests)))
    return costs


def _cheapest(costs: list[tuple[float, float]], num_draft_tokens: int) -> float:
    if num_draft_tokens == 0:
        return 0.0
    return min(ms for longest, ms in costs if longest >= num_draft_tokens)


def _at(curve: Floats, slope: float, index: int) -> float:
    last = len(curve) - 1
    return float(curve[min(index, last)]) + slope * max(0, index - last)


def _lookup(curve: Floats, slope: float, index: npt.NDArray[np.int64]) -> Floats:
    last = len(curve) - 1
    beyond = np.maximum(index - last, 0)
    return np.where(beyond > 0, curve[last] + slope * beyond, curve[np.minimum(index, last)])


class StepView:
    """One step as policies see it: survivals, ranks and prices, each computed once when asked for.

    `inputs` and `table` are as given; every count is about requests that sample. left_out:
    Features.
    """

    def __init__(
        self,
        inputs: DecisionInputs,
        table: CostTable,
        prior: RunningMean | None = None,
        left_out: int = Feature.NONE,
    ) -> None:
        self.inputs = inputs
        self.table = table
        self.repaired = repair(inputs, prior, left_out)
        self._left_out = left_out

    @property
    def has_model(self) -> bool:
        """Whether the cost model can price a step."""
        return bool(self.table.has_model)

    @cached_property
    def survival(self) -> Floats:
        """float64 [R, k]; 0 where there is no draft."""
        survival = np.cumprod(self.repaired.confidence, axis=1)
        return np.where(self.repaired.is_present, survival, 0.0)

    @cached_property
    def gain(self) -> Floats:
        """weight * survival, float64 [R, k]."""
        return self.inputs.weight.astype(np.float64)[:, None] * self.survival

    @cached_property
    def num_sampling(self) -> int:
        """N."""
        return int(self.inputs.samples.sum())

    @cached_property
    def total_weight(self) -> float:
        """W."""
        weights = self.inputs.weight.astype(np.float64)[self.inputs.samples]
        return float(_sum_in_order(weights)) if len(weights) else 0.0

    def num_drafts(self, max_verify_len: int | None = None) -> int:
        """Eligible positions, at most max_verify_len per request."""
        return int(self.eligible(max_verify_len).sum())

    def eligible(self, max_verify_len: int | None = None) -> npt.NDArray[np.bool_]:
        """bool [R, k]: drafts present, at most max_verify_len per request."""
        if max_verify_len is None:
            return self.repaired.is_present
        return self.repaired.is_present & (np.arange(self.gain.shape[1]) < max_verify_len)

    def ranked(self, max_verify_len: int | None = None) -> npt.NDArray[np.int64]:
        """Flat indices (row * k + position) of eligible drafts, best first."""
        rows, positions = np.nonzero(self.eligible(max_verify_len))
        order = np.lexsort((rows, positions, -self.gain[rows, positions]))
        ranked: npt.NDArray[np.int64] = (rows * self.gain.shape[1] + positions)[order]
        return ranked

    @cached_property
    def reach(self) -> int:
        """Most drafts that may be worth a row: those of positive gain, up to the executor's cap."""
        return min(int((self.gain[self.eligible()] > 0.0).sum()), self.inputs.max_budget)

    def within(self, max_step_ms: float) -> int | None:
        """Largest B up to which no step of 0..B drafts, prefill included, is predicted to last
        longer than max_step_ms less a margin for noise; None where not even B = 0 is."""
        longest_ms = max_step_ms / (1.0 + BOUND_MARGIN * self.table.noise_ratio)
        is_within = self.price(np.arange(self.reach + 1)) <= longest_ms
        if not is_within[0]:
            return None
        return int(np.argmin(is_within)) - 1 if not is_within.all() else self.reach

    def context_ms(self) -> float:
        """Cost of the context read, relative to the profiled context; 0 where it is left out."""
        if self._left_out & Feature.CONTEXT:
            return 0.0
        tokens = int(self.inputs.context_tokens[self.inputs.samples].sum())
        relative = tokens - self.table.profiled_context * self.num_sampling
        return self.table.context_ms_per_token * relative

    def price(self, budgets: npt.NDArray[np.int64], num_left_out: int = 0) -> Floats:
        """price(B) in ms for each budget; num_left_out: prefill rows charged to nobody."""
        rows = np.array([self.inputs.num_other_tokens], dtype=np.int64)
        draft = draft_ms(self.table, self.num_sampling, self.inputs.next_draft_tokens)
        chunk = verify_ms(self.table, rows) - verify_ms(self.table, rows - num_left_out)
        table_ms = np.maximum(draft + verify_ms(self.table, rows + budgets) - chunk, MIN_PRICE_MS)
        return np.maximum(table_ms + self.context_ms(), table_ms / 10.0)

    def ratio(self, num_left_out: int = 0) -> Floats:
        """(W + sum of the B largest gains) / price(B) for B = 0..reach."""
        gains = self.gain.reshape(-1)[self.ranked()][: self.reach]
        sums = np.concatenate([[0.0], np.cumsum(gains)])
        return (self.total_weight + sums) / self.price(np.arange(len(sums)), num_left_out)

    def equal_split(self, max_budget: int, num_left_out: int = 0) -> tuple[int, int]:
        """(cap per request, B of all drafts within it) of the highest ratio, B <= max_budget.

        Of equal ratios the smallest cap. Gains are summed by position, then row.
        """
        budgets = np.append(0, np.cumsum(self.eligible().sum(axis=0)))
        sums = np.append(0.0, np.cumsum(self.gain.T[self.eligible().T]))[budgets]
        ratio = (self.total_weight + sums) / self.price(budgets, num_left_out)
        cap = int(np.argmax(ratio[budgets <= max_budget]))
        return cap, int(budgets[cap])
