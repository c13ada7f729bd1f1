"""The cost of a step by its rows, from profiled samples.

    verify_ms(n) = min over captured sizes s >= n of median(samples of s)      n <= capture limit
                 = cost of the first point beyond the limit                    up to that point
                 = linear between points beyond the limit                      up to the last point
                 = last point + slope of the last two points, never negative   past the last point

The suffix minimum makes the captured part a monotone staircase that one slow sample cannot dent: a
batch may always run in a larger graph. Where the largest captured size is below the limit, that
size is the limit. Fewer than three sizes are no model: one point is never extrapolated flat.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.errors import InvalidRequestError

__all__ = [
    "BOUND_MARGIN",
    "FEW_REQUESTS",
    "LEAD_ALONE",
    "MIN_PRICE_MS",
    "ContextCost",
    "CostModel",
    "CostTable",
]

MIN_VERIFY_SIZES = 3
MAX_ROWS = 1 << 20
"""Largest profiled size: the table is dense up to it (8 bytes a row)."""
MAX_SHORT_DRAFT_CELLS = 1 << 22
"""Lengths of shorter drafts, times the most requests that any is told for: their table."""
MIN_PRICE_MS = 1e-6
"""Floor of table(B): where the eager tail descends, a chunk's credit may exceed the step's cost."""
MIN_NOISE_RATIO = 0.01
"""Two costs closer than this are the same, however quiet the samples."""
FEW_REQUESTS, LEAD_ALONE = 4, 0.02
"""Among so few requests confidences one draft old say little of how many of the next drafts hold:
less than all drafts then has to promise more than all by 2 % / N."""
BOUND_MARGIN = 3.0
"""How many noise ratios a predicted step stays below a bound on its time."""

Samples = Mapping[int, Sequence[float]]
"""Size (rows or requests) -> raw samples in ms."""


class CostTable(NamedTuple):
    """A cost model as flat arrays, fit for compiled code.

    verify_ms: float64 [rows], dense from row 0 to the last profiled size; verify_slope_ms per row
    past its end. verify_floor_ms: its suffix minimum, a lower bound on every longer step (equal to
    verify_ms unless the eager tail descends). stair_end: int64 [rows], the last row of the run of
    equal costs that a row is in. draft_ms, draft_slope_ms: the same by requests, of full
    drafts; short_draft_tokens int64 [m], short_draft_ms float64 [m, requests], short_draft_slope_ms
    float64 [m]: of the m shorter lengths that were profiled.
    context_ms_per_token * (context tokens - profiled_context * N) is the context term. has_model:
    0 where there were fewer than three verify sizes. noise_ratio: relative spread below which two
    costs count as equal.
    """

    verify_ms: npt.NDArray[np.float64]
    verify_floor_ms: npt.NDArray[np.float64]
    stair_end: npt.NDArray[np.int64]
    verify_slope_ms: float
    draft_ms: npt.NDArray[np.float64]
    draft_slope_ms: float
    short_draft_tokens: npt.NDArray[np.int64]
    short_draft_ms: npt.NDArray[np.float64]
    short_draft_slope_ms: npt.NDArray[np.float64]
    context_ms_per_token: float
    profiled_context: float
    has_model: int
    noise_ratio: float


@dataclass(frozen=True, slots=True)
class ContextCost:
    """Extra ms per context token read, relative to the context the sizes were profiled with."""

    ms_per_token: float = 0.0
    profiled_tokens_per_request: float = 0.0

    def __post_init__(self) -> None:
        for name in ("ms_per_token", "profiled_tokens_per_request"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise InvalidRequestError(f"cost.context.{name}", value, "must be finite and >= 0")


@dataclass(frozen=True, slots=True)
class CostModel:
    """Profiled samples of one executor, checked on construction.

    verify: rows of the step -> ms samples (> 0). draft: drafting requests -> ms samples (>= 0) of a
    full draft; empty means drafting is free. short_drafts: length -> the same for shorter drafts; a
    length that is not there costs what the next longer one does. capture_limit: largest captured
    size in rows.
    Raises InvalidRequestError naming the field, with paths as in a plan request (`cost.verify...`).
    """

    verify: Samples
    capture_limit: int
    draft: Samples = field(default_factory=dict)
    context: ContextCost = field(default_factory=ContextCost)
    short_drafts: Mapping[int, Samples] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.capture_limit < 0:
            raise InvalidRequestError("cost.capture_limit", self.capture_limit, "must be >= 0")
        for size, samples in self.verify.items():
            _check_samples("cost.verify", "tokens", size, samples, positive=True)
        for drafts in (self.draft, *self.short_drafts.values()):
            for size, samples in drafts.items():
                _check_samples("cost.draft", "requests", size, samples, positive=False)
        self._check_short_drafts()

    def _check_short_drafts(self) -> None:
        most = max((max(samples, default=0) for samples in self.short_drafts.values()), default=0)
        if len(self.short_drafts) * most > MAX_SHORT_DRAFT_CELLS:
            count = len(self.short_drafts)
            raise InvalidRequestError(
                "cost.draft[].requests",
                most,
                f"must be at most {MAX_SHORT_DRAFT_CELLS // count} where {count} lengths are below"
                " max_draft_tokens",
            )

    @property
    def has_model(self) -> bool:
        """Whether there are enough verify sizes to price a step."""
        return len(self.verify) >= MIN_VERIFY_SIZES

    def compile(self) -> CostTable:
        """The model as flat arrays; see CostTable."""
        verify_ms, verify_slope_ms = _verify_curve(self.verify, self.capture_limit)
        draft_ms, draft_slope_ms = _captured_curve(_medians(self.draft))
        lengths = sorted(length for length, samples in self.short_drafts.items() if samples)
        short_ms, short_slope_ms = _stack([self.short_drafts[length] for length in lengths])
        return CostTable(
            verify_ms=verify_ms,
            verify_floor_ms=_suffix_minimum(verify_ms),
            stair_end=_stair_ends(verify_ms),
            verify_slope_ms=verify_slope_ms,
            draft_ms=draft_ms,
            draft_slope_ms=draft_slope_ms,
            short_draft_tokens=np.array(lengths, dtype=np.int64),
            short_draft_ms=short_ms,
            short_draft_slope_ms=short_slope_ms,
            context_ms_per_token=float(self.context.ms_per_token),
            profiled_context=float(self.context.profiled_tokens_per_request),
            has_model=int(self.has_model),
            noise_ratio=_noise_ratio(self.verify),
        )


def _check_samples(
    name: str, key: str, size: int, samples: Sequence[float], *, positive: bool
) -> None:
    if not 1 <= size <= MAX_ROWS:
        raise InvalidRequestError(f"{name}[].{key}", size, f"must be in 1..{MAX_ROWS}")
    where = f"{name}[{key}={size}].ms"
    if len(samples) == 0:
        raise InvalidRequestError(where, list(samples), "needs at least one sample")
    for sample in samples:
        if not (np.isfinite(sample) and (sample > 0 or (sample == 0 and not positive))):
            bound = "> 0" if positive else ">= 0"
            raise InvalidRequestError(where, sample, f"must be finite and {bound}")


def _medians(samples: Samples) -> dict[int, float]:
    return {size: float(statistics.median(samples[size])) for size in sorted(samples)}


def _suffix_minimum(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.ascontiguousarray(np.minimum.accumulate(values[::-1])[::-1])


def _stair_ends(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], True))
    return ends[np.searchsorted(ends, np.arange(len(values)))].astype(np.int64)


def _last_slope(points: Mapping[int, float]) -> float:
    if len(points) < 2:
        return 0.0
    (size_a, ms_a), (size_b, ms_b) = list(points.items())[-2:]
    return max(0.0, (ms_b - ms_a) / (size_b - size_a))


def _staircase(points: Mapping[int, float]) -> npt.NDArray[np.float64]:
    """Dense [0..last size]: the cheapest size that is large enough."""
    sizes = np.array(list(points), dtype=np.int64)
    cheapest = _suffix_minimum(np.array(list(points.values()), dtype=np.float64))
    rows = np.arange(sizes[-1] + 1)
    return cheapest[np.searchsorted(sizes, rows)]


def _captured_curve(points: Mapping[int, float]) -> tuple[npt.NDArray[np.float64], float]:
    if not points:
        return np.zeros(1), 0.0
    return _staircase(points), _last_slope(points)


def _stack(
    drafts: Sequence[Samples],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Curves of several draft lengths as one array, each extended to the longest by its slope."""
    curves = [_captured_curve(_medians(samples)) for samples in drafts]
    longest = max((len(curve) for curve, _ in curves), default=1)
    stacked = np.zeros((len(curves), longest))
    for row, (curve, slope) in zip(stacked, curves, strict=True):
        row[: len(curve)] = curve
        row[len(curve) :] = curve[-1] + slope * np.arange(1, longest - len(curve) + 1)
    return stacked, np.array([slope for _, slope in curves], dtype=np.float64)


def _verify_curve(verify: Samples, capture_limit: int) -> tuple[npt.NDArray[np.float64], float]:
    points = _medians(verify)
    captured = {size: ms for size, ms in points.items() if size <= capture_limit}
    tail = {size: ms for size, ms in points.items() if size > capture_limit}
    stairs = _staircase(captured) if captured else np.empty(0)
    if not tail:
        return (stairs if captured else np.zeros(1)), _last_slope(points)
    rows = np.arange(len(stairs), max(tail) + 1, dtype=np.float64)
    # np.interp holds the first value before the first point: the rule up to that point.
    eager = np.interp(rows, list(tail), list(tail.values()))
    return np.concatenate([stairs, eager]), _last_slope(points)


def _noise_ratio(verify: Samples) -> float:
    """Median over sizes of the samples' relative spread (1.4826 MAD / median), at least 1 %."""
    spreads = []
    for samples in verify.values():
        median = statistics.median(samples)
        deviation = statistics.median(abs(sample - median) for sample in samples)
        spreads.append(1.4826 * deviation / median)
    return max(MIN_NOISE_RATIO, float(statistics.median(spreads))) if spreads else MIN_NOISE_RATIO
