"""Joining the confidences of drafts with what became of them.

Drafts made at the end of step s are verified in step s + 1: confidences of source step s and the
report of s + 1 speak of the same drafts where slot and generation agree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit
from specsched_protocol.shm.report_ring import STEP_ID

from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.decision.finished import FinishedSteps
from specsched_scheduler.learning.calibration.observations import Observations, to_logit

__all__ = ["Classified", "DraftedSteps", "Pairing", "row_of"]

_MAX_STEPS = 256
"""Steps whose report may still come."""

Classified = tuple[npt.NDArray[np.int64], Observations]
"""(sampling class [n], observations of n drafts)."""


class DraftedSteps(NamedTuple):
    """Confidences of the drafts made at the end of n steps, as the drafter gave them, oldest first.

    source_step_id: int64 [n]. Of step i the rows row_begin[i] to row_begin[i + 1] are of slot_id,
    generation: uint32 [m], is_greedy: bool [m], and confidence: float32 [m, k], NaN where there is
    none. row_begin: int64 [n + 1].
    """

    source_step_id: npt.NDArray[np.int64]
    row_begin: npt.NDArray[np.int64]
    slot_id: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    is_greedy: npt.NDArray[np.bool_]
    confidence: npt.NDArray[np.float32]

    def since(self, step: int) -> DraftedSteps:
        """All but the first `step` steps."""
        begin = self.row_begin[step]
        return DraftedSteps(
            source_step_id=self.source_step_id[step:],
            row_begin=self.row_begin[step:] - begin,
            slot_id=self.slot_id[begin:],
            generation=self.generation[begin:],
            is_greedy=self.is_greedy[begin:],
            confidence=self.confidence[begin:],
        )

    def followed_by(self, later: DraftedSteps) -> DraftedSteps:
        """These steps, then those."""
        return DraftedSteps(
            source_step_id=np.concatenate((self.source_step_id, later.source_step_id)),
            row_begin=np.concatenate((self.row_begin, self.row_begin[-1] + later.row_begin[1:])),
            slot_id=np.concatenate((self.slot_id, later.slot_id)),
            generation=np.concatenate((self.generation, later.generation)),
            is_greedy=np.concatenate((self.is_greedy, later.is_greedy)),
            confidence=np.concatenate((self.confidence, later.confidence)),
        )


class Pairing:
    """Keeps confidences until the reports of their steps come.

    num_paired: drafts joined with their outcome; num_unpaired: verified drafts whose confidences
    were not seen; num_altered: drafts left out because the target's logits were altered.
    """

    def __init__(self) -> None:
        self.num_paired = 0
        self.num_unpaired = 0
        self.num_altered = 0
        self._waiting: DraftedSteps | None = None

    def add(self, steps: DraftedSteps) -> None:
        """Keep steps; the oldest of too many are forgotten."""
        waiting = steps if self._waiting is None else self._waiting.followed_by(steps)
        self._waiting = waiting.since(max(len(waiting.source_step_id) - _MAX_STEPS, 0))

    def take(self, steps: FinishedSteps) -> Classified | None:
        """The verified drafts of these steps that teach; None for none."""
        num_steps = steps.words.shape[1]
        waiting = self._waiting
        if waiting is None or not num_steps:
            self.num_unpaired += int((steps.num_verified > 0).sum())
            return None
        of_report, of_draft = np.empty((2, len(steps.slot_id)), dtype=np.int64)
        counts = _join(steps, waiting, of_report, of_draft)
        num_paired, num_unpaired, num_altered = (int(count) for count in counts)
        self.num_paired += num_paired
        self.num_unpaired += num_unpaired
        self.num_altered += num_altered
        # What is older than a report that came will have none.
        newest = int(steps.words[STEP_ID, -1])
        self._waiting = waiting.since(int((waiting.source_step_id + 1 <= newest).sum()))
        if not num_paired:
            return None
        return _classified(steps, waiting, of_report[:num_paired], of_draft[:num_paired])


def _classified(
    steps: FinishedSteps,
    drafted: DraftedSteps,
    of_report: npt.NDArray[np.int64],
    of_draft: npt.NDArray[np.int64],
) -> Classified:
    confidence = drafted.confidence[of_draft].astype(np.float64)
    is_valid = (confidence >= 0.0) & (confidence <= 1.0)
    generation = steps.generation[of_report].astype(np.int64)
    observations = Observations(
        logit=to_logit(np.where(is_valid, confidence, np.nan)),
        num_verified=steps.num_verified[of_report].astype(np.int64),
        num_accepted=steps.num_accepted[of_report].astype(np.int64),
        group=generation << 32 | steps.slot_id[of_report],
    )
    return np.where(drafted.is_greedy[of_draft], GREEDY, SAMPLED).astype(np.int64), observations


@njit(cache=True, nogil=True)
def _join(steps: Any, drafted: Any, of_report: Any, of_draft: Any) -> Any:
    """(drafts joined, not found, altered). of_report, of_draft: int64 out, rows that belong
    together."""
    num_paired, num_unpaired, num_altered = 0, 0, 0
    for step in range(steps.words.shape[1]):
        source = _step_of(drafted.source_step_id, steps.words[STEP_ID, step] - 1)
        begin = 0 if source < 0 else drafted.row_begin[source]
        end = 0 if source < 0 else drafted.row_begin[source + 1]
        place = begin
        for row in range(steps.row_begin[step], steps.row_begin[step + 1]):
            if steps.num_verified[row] == 0:
                continue
            if source >= 0 and not steps.teaches[row]:
                num_altered += 1
                continue
            found = row_of(drafted, begin, end, place, steps.slot_id[row], steps.generation[row])
            if found < 0:
                num_unpaired += 1
                continue
            of_report[num_paired], of_draft[num_paired] = row, found
            num_paired += 1
            place = found + 1
    return num_paired, num_unpaired, num_altered


@njit(cache=True, nogil=True)
def _step_of(source_step_id: Any, wanted: int) -> Any:
    """The newest of these steps, -1 for none."""
    for step in range(len(source_step_id) - 1, -1, -1):
        if source_step_id[step] == wanted:
            return step
    return -1


@njit(cache=True, nogil=True)
def row_of(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    drafted: Any, begin: int, end: int, place: int, slot_id: int, generation: int
) -> Any:
    """The request's row within begin..end, -1 for none. place: where it most likely is."""
    for step in range(end - begin):
        row = place + step
        if row >= end:
            row -= end - begin
        if drafted.slot_id[row] == slot_id and drafted.generation[row] == generation:
            return row
    return -1
