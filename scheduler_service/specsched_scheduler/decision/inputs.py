"""A step to decide, checked, and the decision on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.codes import NO_CAP, DecisionFlags, ModelState
from specsched_scheduler.decision.errors import InvalidRequestError
from specsched_scheduler.decision.step import StepInput

__all__ = ["DecisionInputs", "DecisionOutcome"]

MAX_COUNT = NO_CAP
"""Largest count of tokens or rows: they travel as uint32."""


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """One step, as a policy sees it. Row r of every array speaks of the same request.

    confidence: float [R, k], position 0 first, NaN where a value was not a number. Per request:
    num_draft_tokens uint32 [R] (at most k); has_confidence bool [R]; samples bool [R], False inside
    a chunked prefill; weight float [R], finite and >= 0; context_tokens integer [R], >= 0.
    num_other_tokens: T. num_prefill_tokens: P, at most T. max_budget: NO_CAP for none.
    next_draft_tokens: length of the drafts made at the end of the step, NO_CAP for full ones.
    Raises InvalidRequestError naming the field, with paths as in a plan request.
    """

    confidence: npt.NDArray[np.floating]
    num_draft_tokens: npt.NDArray[np.integer]
    has_confidence: npt.NDArray[np.bool_]
    samples: npt.NDArray[np.bool_]
    weight: npt.NDArray[np.floating]
    context_tokens: npt.NDArray[np.integer]
    num_other_tokens: int
    num_prefill_tokens: int = 0
    max_budget: int = NO_CAP
    next_draft_tokens: int = NO_CAP

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_counts()
        self._check_rows("num_draft_tokens", self.num_draft_tokens, self.max_draft_tokens)
        self._check_rows("context_tokens", self.context_tokens, None)
        for row, weight in enumerate(self.weight.tolist()):
            if not (np.isfinite(weight) and weight >= 0):
                raise InvalidRequestError(
                    f"requests[{row}].weight", weight, "must be finite and >= 0"
                )

    def _check_shapes(self) -> None:
        if self.confidence.ndim != 2:
            raise InvalidRequestError("confidence", self.confidence.shape, "must be [R, k]")
        for name in ("num_draft_tokens", "has_confidence", "samples", "weight", "context_tokens"):
            shape = getattr(self, name).shape
            if shape != (self.num_requests,):
                raise InvalidRequestError(name, shape, f"must have {self.num_requests} rows")

    def _check_counts(self) -> None:
        for name in ("num_other_tokens", "num_prefill_tokens", "max_budget", "next_draft_tokens"):
            value = getattr(self, name)
            if not 0 <= value <= MAX_COUNT:
                raise InvalidRequestError(name, value, f"must be in 0..{MAX_COUNT}")
        if self.num_prefill_tokens > self.num_other_tokens:
            limit = f"must not exceed num_other_tokens = {self.num_other_tokens}"
            raise InvalidRequestError("num_prefill_tokens", self.num_prefill_tokens, limit)

    def _check_rows(self, name: str, values: npt.NDArray[np.integer], limit: int | None) -> None:
        for row, value in enumerate(values.tolist()):
            if value < 0 or (limit is not None and value > limit):
                accepted = "must be >= 0" if limit is None else f"must be in 0..{limit}"
                raise InvalidRequestError(f"requests[{row}].{name}", value, accepted)

    @property
    def num_requests(self) -> int:
        """R."""
        return int(self.confidence.shape[0])

    @property
    def max_draft_tokens(self) -> int:
        """k."""
        return int(self.confidence.shape[1])

    def as_step(self) -> StepInput:
        """The same step for the compiled decision."""
        return StepInput(
            confidence=np.ascontiguousarray(self.confidence),
            num_draft_tokens=self.num_draft_tokens,
            has_confidence=self.has_confidence,
            samples=self.samples,
            weight=self.weight,
            context_tokens=self.context_tokens,
            num_requests=self.num_requests,
            num_other_tokens=self.num_other_tokens,
            num_prefill_tokens=self.num_prefill_tokens,
            max_budget=self.max_budget,
            next_draft_tokens=self.next_draft_tokens,
        )


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """The decision for one step.

    budget: B. verify_lens: int64 [R], what ranking these same confidences gives each request.
    max_verify_len: cap per request beside B, None for none. expected_tokens: N + survival of the
    admitted drafts. expected_ms: predicted time of the whole step, None without a cost model.
    num_repaired: single confidence values replaced. policy: its text, e.g. `fixed(k=3)`.
    """

    budget: int
    verify_lens: npt.NDArray[np.int64]
    max_verify_len: int | None
    model_state: ModelState
    flags: DecisionFlags
    num_repaired: int
    expected_tokens: float
    expected_ms: float | None
    policy: str
