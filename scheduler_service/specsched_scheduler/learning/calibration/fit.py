"""Fitting one sampling class, left to right, and only where it is worth it.

Position j is fitted with positions 0..j-1 as they came out, to the outcome of the whole product
(sequential temperature scaling, arXiv 2607.05147, with an intercept: a temperature alone cannot
mend underconfidence). It is kept only if it predicts requests it was not fitted to better than the
raw confidence does, by more than noise; else the position stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specsched_scheduler.learning.calibration._logistic import fit_position
from specsched_scheduler.learning.calibration._refinement import refine_position
from specsched_scheduler.learning.calibration.gain import HeldOutGain, held_out_gain
from specsched_scheduler.learning.calibration.observations import Observations

__all__ = ["ClassFit", "FitConfig", "fit_class"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FitConfig:
    """How cautiously to fit.

    ridge: weight of the pull towards no change, in rows. min_rows: fewer teach nothing. num_folds:
    of the cross-validation, over whole groups. min_error_z, min_loss_z: standard errors (between
    groups) by which the held-out gain in calibration error and in log loss must exceed 0. Where the
    raw error exceeds material_error, a gain must only be likely: min_material_z. refines: search
    the least calibration error around the least log loss, which takes seconds on a long trace.
    """

    ridge: float = 20.0
    min_rows: int = 200
    num_folds: int = 5
    min_error_z: float = 1.5
    min_material_z: float = 0.5
    material_error: float = 0.015
    min_loss_z: float = -2.0
    refines: bool = True


@dataclass(frozen=True, slots=True)
class ClassFit:
    """temperature, intercept: float64 [k]. is_kept: bool [k], False where the raw value stays.

    z: float64 [k], held-out gain in calibration error, in standard errors; NaN where there were too
    few rows.
    """

    temperature: Floats
    intercept: Floats
    is_kept: npt.NDArray[np.bool_]
    z: Floats


@dataclass(frozen=True, slots=True)
class _PositionRows:
    """The rows in which one position was seen, float64 [n] each, and the fold of each row."""

    logit: Floats
    prev: Floats
    reached: Floats
    group: npt.NDArray[np.int64]
    fold: npt.NDArray[np.int64]

    def fit(
        self, rows: npt.NDArray[np.bool_], ridge: float, *, refines: bool
    ) -> tuple[float, float]:
        part = (self.logit[rows], self.prev[rows], self.reached[rows])
        scale, intercept = fit_position(*part, ridge)
        if refines:
            scale, intercept = refine_position(*part, scale, intercept)
        return float(scale), float(intercept)


def fit_class(observations: Observations, config: FitConfig | None = None) -> ClassFit:
    """Fit every position of one sampling class."""
    config = config or FitConfig()
    k = observations.max_draft_tokens
    scale, intercept = np.ones(k), np.zeros(k)
    is_kept, z = np.zeros(k, dtype=np.bool_), np.full(k, np.nan)
    prev = np.ones(len(observations))
    fold = _folds(observations.group, config.num_folds)
    for position in range(k):
        known = observations.is_known(position)
        logit = observations.logit[:, position]
        if known.sum() >= config.min_rows:
            rows = _PositionRows(
                np.ascontiguousarray(logit[known]),
                prev[known],
                observations.reached(position)[known],
                observations.group[known],
                fold[known],
            )
            is_kept[position], z[position], fitted = _fit_if_worth(rows, config)
            if is_kept[position]:
                scale[position], intercept[position] = fitted
        prev = prev / (1.0 + np.exp(-(scale[position] * logit + intercept[position])))
    return ClassFit(1.0 / scale, intercept, is_kept, z)


def _folds(group: npt.NDArray[np.int64], num_folds: int) -> npt.NDArray[np.int64]:
    """A fold per row, whole groups together, neighbouring groups apart."""
    _, rank = np.unique(group, return_inverse=True)
    return (rank % num_folds).astype(np.int64)


def _fit_if_worth(
    rows: _PositionRows, config: FitConfig
) -> tuple[bool, float, tuple[float, float]]:
    """(whether a fit is worth it, its z, the fit): the first way of fitting that is."""
    best_z = -np.inf
    for refines in (True, False) if config.refines else (False,):
        gain = _judge(rows, config, refines=refines)
        best_z = max(best_z, gain.error_z)
        if _is_worth(gain, config):
            everything = np.ones(len(rows.logit), dtype=np.bool_)
            return True, gain.error_z, rows.fit(everything, config.ridge, refines=refines)
    return False, best_z, (1.0, 0.0)


def _is_worth(gain: HeldOutGain, config: FitConfig) -> bool:
    is_material = gain.error_before > config.material_error
    least_z = config.min_material_z if is_material else config.min_error_z
    return gain.error_z >= least_z and gain.loss_z >= config.min_loss_z


def _judge(rows: _PositionRows, config: FitConfig, *, refines: bool) -> HeldOutGain:
    """Every row is predicted by a fit that has not seen its group."""
    raw = rows.prev / (1.0 + np.exp(-rows.logit))
    fitted = raw.copy()
    for fold in range(config.num_folds):
        held_out = rows.fold == fold
        if held_out.any() and not held_out.all():
            scale, intercept = rows.fit(~held_out, config.ridge, refines=refines)
            logit = scale * rows.logit[held_out] + intercept
            fitted[held_out] = rows.prev[held_out] / (1.0 + np.exp(-logit))
    return held_out_gain(raw, fitted, rows.reached, rows.group)
