"""How far a draft tells of the one that follows it.

By position, over pairs of drafts of a request that follow one another, survivals as calibrated and
relative to the mean of the request's last drafts, as in decision.anticipation:

    slope[j] = covariance(before - own, after - own) / variance(before - own)
    pull[j] = (1 - slope[j]) * n[j] / (n[j] + 64)

n pairs were seen. Survivals stand in for outcomes: those are known only as far as drafts were
verified, which depends on the very confidences.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_scheduler.decision.anticipation import (
    OwnDrafts,
    new_own_drafts,
    note_own_draft,
    survivals_of,
)
from specsched_scheduler.decision.calibration import (
    GREEDY,
    SAMPLED,
    CalibrationTable,
    calibrate_rows,
)
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.pairing import DraftedSteps

__all__ = ["Succession", "SuccessionState"]

Floats = npt.NDArray[np.float64]

_MEMORY = 2048.0
"""Pairs that the averages remember."""
_TRUST = 64.0
"""Pairs after which a slope is half believed."""
_MIN_VARIANCE = 1e-9
"""Below it all drafts of a request are alike, and there is nothing to pull."""
_MIN_CHANGE = 0.01
_NO_STEP = -2


class SuccessionState(NamedTuple):
    """Averages by position, float64 [k].

    variance: of the drafts before about their request's own mean; covariance: of those with the
    drafts that follow. evidence: pairs that they rest on, at most what is remembered.
    """

    variance: Floats
    covariance: Floats
    evidence: Floats


class _Newest(NamedTuple):
    """By slot: survivals of the newest draft, float64 [S, k], how many there are, int64 [S], and
    the step at whose end it was made, int64 [S]."""

    survival: Floats
    length: npt.NDArray[np.int64]
    step_id: npt.NDArray[np.int64]


class Succession:
    """Learns from the drafts of one executor. One thread.

    pull: float64 [k], what decisions are to go by; replaced by `update`, never changed.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self.pull = np.zeros(max_draft_tokens)
        self._state = SuccessionState(*np.zeros((3, max_draft_tokens)))
        self._own, self._newest = _room_for(1, max_draft_tokens)
        self._calibration = Calibration.identity(max_draft_tokens)
        self._table = self._calibration.compile()

    def observe(self, drafted: DraftedSteps, calibration: Calibration) -> None:
        """Take in the drafts of more steps; those of a step and the next make pairs."""
        if not len(drafted.slot_id):
            return
        self._grow(int(drafted.slot_id.max()) + 1)
        calibrated = _calibrated(drafted, self._compiled(calibration))
        _follow(drafted, calibrated, self._own, self._newest, self._state)

    def update(self) -> bool:
        """Renew `pull`; whether it changed by what may count."""
        known = _pull(self._state)
        if np.abs(known - self.pull).max(initial=0.0) < _MIN_CHANGE:
            return False
        self.pull = known
        return True

    def state(self) -> SuccessionState:
        """What was learned, to be kept."""
        return SuccessionState(*(each.copy() for each in self._state))

    def restore(self, state: SuccessionState) -> None:
        """Go on from what was learned elsewhere, here forgotten."""
        self._state = SuccessionState(*(each.copy() for each in state))
        self.pull = _pull(self._state)

    def _compiled(self, calibration: Calibration) -> CalibrationTable:
        """Its table; it seldom changes."""
        if calibration is not self._calibration:
            self._calibration, self._table = calibration, calibration.compile()
        return self._table

    def _grow(self, num_slots: int) -> None:
        """Have room for so many slots."""
        num_known = len(self._own.generation)
        if num_slots <= num_known:
            return
        own, newest = _room_for(2 * num_slots, len(self.pull))
        for name in ("survival", "num_drafts", "generation"):
            getattr(own, name)[:num_known] = getattr(self._own, name)
        for bigger, known in zip(newest, self._newest, strict=True):
            bigger[:num_known] = known
        self._own, self._newest = own, newest


def _room_for(num_slots: int, max_draft_tokens: int) -> tuple[OwnDrafts, _Newest]:
    newest = _Newest(
        np.zeros((num_slots, max_draft_tokens)),
        np.zeros(num_slots, dtype=np.int64),
        np.full(num_slots, _NO_STEP, dtype=np.int64),
    )
    return new_own_drafts(num_slots, max_draft_tokens), newest


def _pull(state: SuccessionState) -> Floats:
    varies = state.variance > _MIN_VARIANCE
    slope = np.where(varies, state.covariance / np.where(varies, state.variance, 1.0), 1.0)
    pull: Floats = (1.0 - slope.clip(0.0, 1.0)) * state.evidence / (state.evidence + _TRUST)
    return pull


def _calibrated(steps: DraftedSteps, calibration: CalibrationTable) -> npt.NDArray[np.float32]:
    of_class = np.where(steps.is_greedy, GREEDY, SAMPLED).astype(np.uint8)
    calibrated = np.empty_like(steps.confidence)
    calibrate_rows(calibration, of_class, len(calibrated), steps.confidence, calibrated)
    return calibrated


@njit(cache=True, nogil=True)
def _follow(steps: Any, confidence: Any, own: Any, newest: Any, state: Any) -> None:
    """Add the pairs of DraftedSteps, of calibrated confidences, to SuccessionState."""
    survival = np.empty(confidence.shape[1])
    for step in range(len(steps.source_step_id)):
        step_id = steps.source_step_id[step]
        for row in range(steps.row_begin[step], steps.row_begin[step + 1]):
            slot, generation = np.int64(steps.slot_id[row]), np.int64(steps.generation[row])
            length = survivals_of(confidence[row], len(survival), survival)
            is_next = newest.step_id[slot] == step_id - 1 and own.generation[slot] == generation
            if is_next:
                both = min(length, newest.length[slot])
                _add(own.survival[slot], newest.survival[slot], survival, both, state)
            note_own_draft(own, slot, generation, survival[:length])
            newest.survival[slot, :length] = survival[:length]
            newest.length[slot], newest.step_id[slot] = length, step_id


@njit(cache=True, nogil=True)
def _add(own: Any, before: Any, after: Any, length: int, state: Any) -> None:
    """Add a pair of drafts, as far as both reach. own: mean up to the first of them."""
    for position in range(length):
        state.evidence[position] = min(state.evidence[position] + 1.0, _MEMORY)
        share = 1.0 / state.evidence[position]
        off_before = before[position] - own[position]
        off_after = after[position] - own[position]
        state.variance[position] += share * (off_before * off_before - state.variance[position])
        state.covariance[position] += share * (off_before * off_after - state.covariance[position])
