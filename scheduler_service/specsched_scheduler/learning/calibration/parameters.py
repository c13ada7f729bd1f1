"""A calibration: temperature and intercept per sampling class and draft position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.calibration import (
    NUM_CLASSES,
    CalibrationTable,
    compile_calibration,
)
from specsched_scheduler.learning.calibration._logistic import (
    MAX_INTERCEPT,
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
)
from specsched_scheduler.learning.errors import StateError

__all__ = ["Calibration", "survival"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """temperature, intercept: float64 [NUM_CLASSES, k]; class 0 is greedy, 1 sampled.

    Calibrated logit = logit / temperature + intercept. Raises StateError out of bounds.
    """

    temperature: Floats
    intercept: Floats

    def __post_init__(self) -> None:
        shape = (NUM_CLASSES, self.max_draft_tokens)
        if self.temperature.shape != shape or self.intercept.shape != shape:
            raise StateError(f"calibration has shape {self.intercept.shape}, expected {shape}")
        _check("temperature", self.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE)
        _check("intercept", self.intercept, -MAX_INTERCEPT, MAX_INTERCEPT)

    @classmethod
    def identity(cls, max_draft_tokens: int) -> Calibration:
        """Leaves every confidence as it is."""
        shape = (NUM_CLASSES, max_draft_tokens)
        return cls(np.ones(shape), np.zeros(shape))

    @property
    def max_draft_tokens(self) -> int:
        """k."""
        return int(self.temperature.shape[-1])

    @property
    def is_identity(self) -> bool:
        """Whether nothing was learned."""
        return bool((self.temperature == 1.0).all() and (self.intercept == 0.0).all())

    def equals(self, other: Calibration) -> bool:
        """Whether both do the same to every confidence."""
        return np.array_equal(self.temperature, other.temperature) and np.array_equal(
            self.intercept, other.intercept
        )

    def compile(self) -> CalibrationTable:
        """The form that decisions use."""
        return compile_calibration(self.temperature, self.intercept)

    def with_class(
        self, sampling_class: int, temperature: Floats, intercept: Floats
    ) -> Calibration:
        """The same with one class replaced; float64 [k] each."""
        new_temperature, new_intercept = self.temperature.copy(), self.intercept.copy()
        new_temperature[sampling_class] = temperature
        new_intercept[sampling_class] = intercept
        return Calibration(new_temperature, new_intercept)


def survival(logit: Floats, temperature: Floats, intercept: Floats) -> Floats:
    """Calibrated survival, float64 [n, k]. logit: [n, k]; temperature, intercept: [k]."""
    conditional = 1.0 / (1.0 + np.exp(-(logit / temperature + intercept)))
    return np.asarray(np.cumprod(conditional, axis=1), dtype=np.float64)


def _check(name: str, values: Floats, low: float, high: float) -> None:
    for value in values.flat:
        if not low <= value <= high:
            raise StateError(f"calibration.{name} is {value}, accepted are {low:g} to {high:g}")
