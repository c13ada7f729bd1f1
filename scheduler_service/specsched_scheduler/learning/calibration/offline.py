"""Calibration from a recorded trace, with what it is worth on requests it was not fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specsched_scheduler.learning.calibration.fit import ClassFit, FitConfig, fit_class
from specsched_scheduler.learning.calibration.observations import Observations
from specsched_scheduler.learning.calibration.parameters import survival
from specsched_scheduler.learning.calibration.reliability import (
    ReliabilityBin,
    expected_calibration_error,
    reliability_bins,
)

__all__ = ["PositionReport", "TraceFit", "calibrate_trace", "held_out_survival"]

_NUM_FOLDS = 5
_SEED = 20260705

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PositionReport:
    """One draft position: the survival up to it, raw and calibrated, on held-out requests.

    error_*: expected calibration error of the cumulative product, in [0, 1].
    """

    position: int
    num_rows: int
    error_raw: float
    error_calibrated: float
    raw: list[ReliabilityBin]
    calibrated: list[ReliabilityBin]


@dataclass(frozen=True, slots=True)
class TraceFit:
    """fit: to the whole trace. positions: from fits that left out the requests they are judged on.

    num_accepted, expected_raw, expected_calibrated: per row, means over the verified positions.
    """

    fit: ClassFit
    positions: list[PositionReport]
    num_rows: int
    num_groups: int
    num_accepted: float
    expected_raw: float
    expected_calibrated: float


def calibrate_trace(observations: Observations, config: FitConfig | None = None) -> TraceFit:
    """Fit one sampling class; judge it by cross-validation over whole groups (seeded)."""
    calibrated = held_out_survival(observations, config)
    k = observations.max_draft_tokens
    raw = survival(observations.logit, np.ones(k), np.zeros(k))
    positions = [_report(observations, j, raw, calibrated) for j in range(k)]
    known = np.stack([observations.is_known(j) for j in range(k)], axis=1)
    return TraceFit(
        fit=fit_class(observations, config),
        positions=positions,
        num_rows=len(observations),
        num_groups=len(np.unique(observations.group)),
        num_accepted=float(observations.num_accepted.mean()),
        expected_raw=float(np.where(known, raw, 0.0).sum(axis=1).mean()),
        expected_calibrated=float(np.where(known, calibrated, 0.0).sum(axis=1).mean()),
    )


def held_out_survival(observations: Observations, config: FitConfig | None = None) -> Floats:
    """Calibrated survivals, float64 [n, k], each by a fit that left out its request's fifth."""
    groups, rank = np.unique(observations.group, return_inverse=True)
    shuffled = np.random.default_rng(_SEED).permutation(len(groups))
    fold = shuffled[rank] % _NUM_FOLDS
    predicted = np.empty(observations.logit.shape)
    for index in range(_NUM_FOLDS):
        held_out = fold == index
        fit = fit_class(observations.rows(~held_out), config)
        logit = observations.logit[held_out]
        predicted[held_out] = survival(logit, fit.temperature, fit.intercept)
    return predicted


def _report(
    observations: Observations, position: int, raw: Floats, calibrated: Floats
) -> PositionReport:
    known = observations.is_known(position)
    outcome = observations.reached(position)[known]
    before, after = raw[known, position], calibrated[known, position]
    return PositionReport(
        position=position,
        num_rows=int(known.sum()),
        error_raw=expected_calibration_error(before, outcome),
        error_calibrated=expected_calibration_error(after, outcome),
        raw=reliability_bins(before, outcome),
        calibrated=reliability_bins(after, outcome),
    )
