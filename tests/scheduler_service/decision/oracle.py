"""The decision in plain Python, written from its definition alone, and steps to try it on."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field

import numpy as np
from specsched_scheduler.decision import NO_CAP, ContextCost, CostModel, DecisionInputs


@dataclass(frozen=True)
class Row:
    """One request. confidence: None for none yet."""

    confidence: list[float] | None
    num_draft_tokens: int
    samples: bool = True
    weight: float = 1.0
    context_tokens: int = 0


@dataclass(frozen=True)
class Step:
    """A step and its cost profile."""

    max_draft_tokens: int
    rows: list[Row]
    num_other_tokens: int
    verify: dict[int, list[float]]
    capture_limit: int
    num_prefill_tokens: int = 0
    max_budget: int | None = None
    draft: dict[int, list[float]] = field(default_factory=dict)
    ms_per_token: float = 0.0
    profiled: float = 0.0

    def inputs(self, dtype: type = np.float64) -> DecisionInputs:
        """The same for the product."""
        k = self.max_draft_tokens
        values = [row.confidence or [math.nan] * k for row in self.rows]
        return DecisionInputs(
            confidence=np.array(values, dtype=dtype).reshape(len(self.rows), k),
            num_draft_tokens=np.array([row.num_draft_tokens for row in self.rows], dtype=np.uint32),
            has_confidence=np.array([row.confidence is not None for row in self.rows], dtype=bool),
            samples=np.array([row.samples for row in self.rows], dtype=bool),
            weight=np.array([row.weight for row in self.rows], dtype=dtype),
            context_tokens=np.array([row.context_tokens for row in self.rows], dtype=np.uint32),
            num_other_tokens=self.num_other_tokens,
            num_prefill_tokens=self.num_prefill_tokens,
            max_budget=NO_CAP if self.max_budget is None else self.max_budget,
        )

    def cost(self) -> CostModel:
        """The same for the product."""
        context = ContextCost(self.ms_per_token, self.profiled)
        return CostModel(self.verify, self.capture_limit, self.draft, context)


def curve(points: dict[int, float], index: int, limit: float = math.inf) -> float:
    """A profiled curve at `index`: staircase to the limit, eager tail beyond it, then a slope."""
    if not points:
        return 0.0
    captured = [ms for size, ms in points.items() if index <= size <= limit]
    if captured:
        return min(captured)
    sizes = sorted(points)
    tail = [size for size in sizes if size > limit]
    if tail and index <= tail[0]:
        return points[tail[0]]
    for left, right in itertools.pairwise(tail):
        if left <= index <= right:
            share = (index - left) / (right - left)
            return points[left] + share * (points[right] - points[left])
    if len(sizes) == 1:
        return points[sizes[0]]
    a, b = sizes[-2:]
    return points[b] + max(0.0, (points[b] - points[a]) / (b - a)) * (index - b)


def verify_ms(step: Step, rows: int) -> float:
    """Cost of so many rows."""
    medians = {size: statistics.median(ms) for size, ms in step.verify.items()}
    return curve(medians, rows, step.capture_limit)


def is_valid(value: float) -> bool:
    """Whether a confidence can be used as it is."""
    return not math.isnan(value) and 0.0 <= value <= 1.0


def means(step: Step) -> list[float]:
    """Mean valid confidence of each position over rows that sample and have a draft there."""
    result = []
    for j in range(step.max_draft_tokens):
        valid = [
            row.confidence[j]
            for row in step.rows
            if row.samples and row.confidence and j < row.num_draft_tokens
            if is_valid(row.confidence[j])
        ]
        result.append(sum(valid) / len(valid) if valid else 0.5)
    return result


def ranked(step: Step, max_verify_len: int | None = None) -> list[tuple[float, int, int, float]]:
    """(gain, position, row, survival) of all eligible drafts, best first; and repairs counted."""
    prior = means(step)
    drafts = []
    for r, row in enumerate(step.rows):
        survival = 1.0
        for j in range(row.num_draft_tokens if row.samples else 0):
            value = row.confidence[j] if row.confidence else math.nan
            survival *= value if is_valid(value) else prior[j]
            if max_verify_len is None or j < max_verify_len:
                drafts.append((row.weight * survival, j, r, survival))
    return sorted(drafts, key=lambda draft: (-draft[0], draft[1], draft[2]))


def num_repaired(step: Step) -> int:
    """Impossible single values among the drafts present."""
    return sum(
        not is_valid(value)
        for row in step.rows
        if row.samples and row.confidence
        for value in row.confidence[: row.num_draft_tokens]
    )


def ratios(step: Step, *, leaves_out_prefill: bool) -> list[float]:
    """(W + sum of the B best) / price(B) for every B that can gain."""
    sampling = [row for row in step.rows if row.samples]
    weight = 0.0
    for row in sampling:
        weight += row.weight
    draft = curve({n: statistics.median(ms) for n, ms in step.draft.items()}, len(sampling))
    read = sum(row.context_tokens for row in sampling) - step.profiled * len(sampling)
    total = step.num_other_tokens
    prefill = step.num_prefill_tokens if leaves_out_prefill else 0
    chunk = verify_ms(step, total) - verify_ms(step, total - prefill)
    gains = [draft[0] for draft in ranked(step) if draft[0] > 0.0]
    if step.max_budget is not None:
        gains = gains[: step.max_budget]
    gain_sum, result = 0.0, []
    for budget in range(len(gains) + 1):
        gain_sum += gains[budget - 1] if budget else 0.0
        table = max(draft + verify_ms(step, total + budget) - chunk, 1e-6)
        price = max(table + step.ms_per_token * read, table / 10)
        result.append((weight + gain_sum) / price)
    return result


def budget(step: Step, policy: str, parameter: float = 0.0) -> int:
    """The budget of a built-in policy."""
    cap = math.inf if step.max_budget is None else step.max_budget
    drafts = ranked(step)
    if policy in ("throughput", "ratio", "greedy-causal"):
        if len(step.verify) < 3:
            return int(min(len(drafts), cap))
        values = ratios(step, leaves_out_prefill=policy == "throughput")
        if policy == "greedy-causal":
            for index in range(1, len(values)):
                if values[index] < values[index - 1]:
                    values = values[:index]
                    break
        best = values.index(max(values))
        num_sampling = sum(row.samples for row in step.rows)
        if policy == "throughput" and 0 < num_sampling <= 4:
            is_clear = values[best] > values[-1] * (1 + 0.02 / num_sampling)
            best = best if is_clear else len(values) - 1
        return best
    wanted = {
        "fixed": sum(draft[1] < parameter for draft in drafts),
        "threshold": sum(draft[3] >= parameter for draft in drafts),
        "off": 0,
    }[policy]
    return int(min(wanted, cap))


def verify_lens(step: Step, chosen: int, max_verify_len: int | None = None) -> list[int]:
    """Drafts of each request among the `chosen` best."""
    lens = [0] * len(step.rows)
    for _, _, r, _ in ranked(step, max_verify_len)[:chosen]:
        lens[r] += 1
    return lens
