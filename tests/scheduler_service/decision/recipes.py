"""Large steps, so that the search bounds instead of sorting, in shapes that provoke near ties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from specsched_scheduler.decision import NO_CAP, CostModel, CostTable, DecisionInputs


@dataclass(frozen=True)
class Recipe:
    """A large step in a few words, so that a failing one can be read."""

    seed: int
    shape: tuple[int, int]
    confidence: str
    is_weighted: bool
    share_known: float
    num_prefill_tokens: int
    max_budget: int
    dtype: type
    stride: int
    base_ms: float
    slope_ms: float
    noise: float
    limit_share: float

    def inputs(self) -> DecisionInputs:
        rng = np.random.default_rng(self.seed)
        num_requests, k = self.shape
        ones = np.ones(num_requests)
        return DecisionInputs(
            confidence=CONFIDENCES[self.confidence](rng, self.shape).astype(self.dtype),
            num_draft_tokens=rng.choice([k, k, k, k // 2, 0], num_requests).astype(np.uint32),
            has_confidence=rng.random(num_requests) < self.share_known,
            samples=rng.random(num_requests) < 0.95,
            weight=rng.choice([0.5, 1.0, 3.0, 0.0], num_requests) if self.is_weighted else ones,
            context_tokens=rng.integers(0, 1000, num_requests).astype(np.uint32),
            num_other_tokens=num_requests + 64,
            num_prefill_tokens=self.num_prefill_tokens,
            max_budget=self.max_budget,
        )

    def table(self) -> CostTable:
        max_rows = self.shape[0] * (self.shape[1] + 1) + 64
        sizes = np.arange(self.stride, max_rows + 2 * self.stride, self.stride)
        noise = 1.0 + self.noise * np.random.default_rng(self.seed).random(len(sizes))
        costs = (self.base_ms + self.slope_ms * sizes) * noise
        verify = {int(size): [float(ms)] for size, ms in zip(sizes, costs, strict=True)}
        return CostModel(verify, int(self.limit_share * max_rows)).compile()


Shape = tuple[int, int]
CONFIDENCES: dict[str, Callable[[np.random.Generator, Shape], npt.NDArray[np.float64]]] = {
    "spread": lambda rng, shape: rng.random(shape),
    "realistic": lambda rng, shape: rng.beta(4.0, 1.5, shape),
    "tied": lambda rng, shape: rng.choice([0.5, 0.7, 0.9], shape),
    "equal": lambda rng, shape: np.full(shape, rng.choice([0.5, 0.7, 0.95, 1.0])),
    "vanishing": lambda rng, shape: rng.random(shape) ** 12,
    "broken": lambda rng, shape: np.where(rng.random(shape) < 0.1, np.nan, rng.random(shape)),
}
RECIPES = st.builds(
    Recipe,
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(32, 4), (100, 7), (256, 7), (512, 11)]),
    confidence=st.sampled_from(sorted(CONFIDENCES)),
    is_weighted=st.booleans(),
    share_known=st.sampled_from([1.0, 0.9]),
    num_prefill_tokens=st.sampled_from([0, 64]),
    max_budget=st.sampled_from([NO_CAP, NO_CAP, 0, 37, 500]),
    dtype=st.sampled_from([np.float32, np.float64]),
    stride=st.sampled_from([1, 8, 37, 256]),
    base_ms=st.sampled_from([0.01, 1.0, 20.0]),
    slope_ms=st.sampled_from([0.0, 1e-6, 0.002, 0.02, 0.5]),
    noise=st.sampled_from([0.0, 0.05]),
    limit_share=st.sampled_from([0.0, 0.5, 2.0]),
)
