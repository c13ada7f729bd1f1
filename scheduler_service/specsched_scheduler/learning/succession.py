"""How far the survivals of a request's draft tell those of its next one.

By position, over pairs of drafts that follow one another, as they were calibrated:

    slope[j] = covariance(survival before, survival after) / variance(survival before)
    pull[j] = (1 - slope[j]) * n[j] / (n[j] + 64)

n pairs were seen. Survivals stand in for outcomes: those are known only as far as drafts were
verified, which depends on the very confidences.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_scheduler.decision.anticipation import Anticipation, no_anticipation
from specsched_scheduler.decision.calibration import (
    GREEDY,
    SAMPLED,
    CalibrationTable,
    calibrate_rows,
)
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.pairing import DraftedSteps, row_of

__all__ = ["Succession", "SuccessionState"]

Floats = npt.NDArray[np.float64]

_MEMORY = 2048.0
"""Pairs that the averages remember."""
_TRUST = 64.0
"""Pairs after which a slope is half believed."""
_MIN_VARIANCE = 1e-9
"""Below it all drafts are alike, and there is nothing to pull."""
_MIN_CHANGE = 0.01


class SuccessionState(NamedTuple):
    """Averages by position, float64 [k].

    survival: mean of drafts that follow one. variance, covariance: about it, of the drafts before,
    and of those with the ones that follow. evidence: pairs that they rest on, at most what is
    remembered.
    """

    survival: Floats
    variance: Floats
    covariance: Floats
    evidence: Floats


class Succession:
    """Learns from the drafts of one executor. One thread.

    anticipation: what decisions are to go by; replaced by `update`, never changed.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self.anticipation = no_anticipation(max_draft_tokens)
        self._state = SuccessionState(*np.zeros((4, max_draft_tokens)))
        self._last: DraftedSteps | None = None
        self._calibration = Calibration.identity(max_draft_tokens)
        self._table = self._calibration.compile()

    def observe(self, drafted: DraftedSteps, calibration: Calibration) -> None:
        """Take in the drafts of more steps; those of a step and the next make pairs."""
        steps = drafted if self._last is None else self._last.followed_by(drafted)
        num_steps = len(steps.source_step_id)
        if num_steps > 0:
            self._last = steps.since(num_steps - 1)
            _follow(steps, _survivals(steps, self._compiled(calibration)), self._state)

    def update(self) -> bool:
        """Renew `anticipation`; whether it changed by what may count."""
        known = _anticipation(self._state)
        if np.abs(np.stack(known) - np.stack(self.anticipation)).max(initial=0.0) < _MIN_CHANGE:
            return False
        self.anticipation = known
        return True

    def state(self) -> SuccessionState:
        """What was learned, to be kept."""
        return SuccessionState(*(each.copy() for each in self._state))

    def restore(self, state: SuccessionState) -> None:
        """Go on from what was learned elsewhere, here forgotten."""
        self._state = SuccessionState(*(each.copy() for each in state))
        self.anticipation = _anticipation(self._state)

    def _compiled(self, calibration: Calibration) -> CalibrationTable:
        """Its table; it seldom changes."""
        if calibration is not self._calibration:
            self._calibration, self._table = calibration, calibration.compile()
        return self._table


def _anticipation(state: SuccessionState) -> Anticipation:
    varies = state.variance > _MIN_VARIANCE
    slope = np.where(varies, state.covariance / np.where(varies, state.variance, 1.0), 1.0)
    trust = state.evidence / (state.evidence + _TRUST)
    return Anticipation(
        survival=np.minimum.accumulate(state.survival),
        pull=(1.0 - slope.clip(0.0, 1.0)) * trust,
    )


def _survivals(steps: DraftedSteps, calibration: CalibrationTable) -> Floats:
    """float64 [m, k]; NaN from the first position on that has no probability."""
    of_class = np.where(steps.is_greedy, GREEDY, SAMPLED).astype(np.uint8)
    calibrated = np.empty_like(steps.confidence)
    calibrate_rows(calibration, of_class, len(calibrated), steps.confidence, calibrated)
    is_valid = (calibrated >= 0.0) & (calibrated <= 1.0)
    survivals: Floats = np.cumprod(np.where(is_valid, calibrated, np.nan), axis=1, dtype=np.float64)
    return survivals


@njit(cache=True, nogil=True)
def _follow(steps: Any, survival: Any, state: Any) -> None:
    """Add the pairs of DraftedSteps to SuccessionState."""
    for step in range(1, len(steps.source_step_id)):
        if steps.source_step_id[step] != steps.source_step_id[step - 1] + 1:
            continue
        begin, end = steps.row_begin[step - 1], steps.row_begin[step]
        place = begin
        for row in range(end, steps.row_begin[step + 1]):
            found = row_of(steps, begin, end, place, steps.slot_id[row], steps.generation[row])
            if found >= 0:
                _add(survival[found], survival[row], state)
                place = found + 1


@njit(cache=True, nogil=True)
def _add(before: Any, after: Any, state: Any) -> None:
    """Add a pair, as far as both drafts reach."""
    for position in range(len(before)):
        if np.isnan(before[position]) or np.isnan(after[position]):
            return
        if state.evidence[position] == 0.0:
            state.survival[position] = (before[position] + after[position]) / 2.0
        state.evidence[position] = min(state.evidence[position] + 1.0, _MEMORY)
        share = 1.0 / state.evidence[position]
        off_before = before[position] - state.survival[position]
        off_after = after[position] - state.survival[position]
        state.variance[position] += share * (off_before * off_before - state.variance[position])
        state.covariance[position] += share * (off_before * off_after - state.covariance[position])
        state.survival[position] += share * off_after
