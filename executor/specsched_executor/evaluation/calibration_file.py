"""A calibration as it lies beside a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["CalibrationFile", "logits"]

Floats = npt.NDArray[np.float64]
_CLASSES = ("greedy", "sampled")
_EPSILON = 1e-7


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationFile:
    """temperature, intercept: float64 [2, k], of greedy (0) and sampled (1) requests.

    Calibrated logit = logit / temperature + intercept.
    """

    temperature: Floats
    intercept: Floats

    @classmethod
    def read(cls, path: Path) -> CalibrationFile:
        """From the learned state that `specsched calibrate --out` writes, its only entry.

        Raises ValueError for a file that is none.
        """
        try:
            (entry,) = json.loads(path.read_text())["entries"]
            classes = [entry["calibration"][name] for name in _CLASSES]
            temperature, intercept = (
                np.array([each[name] for each in classes], dtype=np.float64)
                for name in ("temperature", "intercept")
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no learned state of one entry: {error!r}") from error
        is_table = temperature.ndim == 2 and temperature.shape == intercept.shape
        if not is_table or not (temperature > 0).all():
            raise ValueError(
                f"{path} has temperatures {temperature.shape} and intercepts {intercept.shape};"
                " accepted: equally many, temperatures above 0"
            )
        return cls(temperature, intercept)

    def apply(self, confidence: Floats, sampling_class: int) -> Floats:
        """Calibrated confidences; float64 [n, k], k at most that of the calibration."""
        k = confidence.shape[1]
        if k > self.temperature.shape[1]:
            known = self.temperature.shape[1]
            raise ValueError(f"drafts have {k} positions; the calibration knows {known}")
        scaled = logits(confidence) / self.temperature[sampling_class, :k]
        return np.asarray(1.0 / (1.0 + np.exp(-(scaled + self.intercept[sampling_class, :k]))))


def logits(confidence: Floats) -> Floats:
    """log(c / (1 - c)), of c kept a little off 0 and 1."""
    inside = np.clip(confidence, _EPSILON, 1 - _EPSILON)
    return np.asarray(np.log(inside) - np.log1p(-inside))
