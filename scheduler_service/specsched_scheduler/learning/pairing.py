"""Joining the confidences of drafts with what became of them.

Drafts made at the end of step s are verified in step s + 1: confidences of source step s and the
report of s + 1 speak of the same drafts where slot and generation agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from specsched_protocol.plan import StepReport

from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.learning.calibration.observations import Observations, to_logit

__all__ = ["Pairing", "StepConfidences"]

_MAX_STEPS = 256
"""Steps whose report may still come."""


@dataclass(frozen=True, slots=True)
class StepConfidences:
    """Confidences of the drafts made at the end of a step, as the drafter gave them.

    slot_id, generation: uint32 [R]; is_greedy: bool [R]; confidence: float32 [R, k], NaN where
    there is none.
    """

    source_step_id: int
    slot_id: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    is_greedy: npt.NDArray[np.bool_]
    confidence: npt.NDArray[np.float32]


class Pairing:
    """Keeps confidences until the report of their step comes.

    num_paired: drafts joined with their outcome; num_unpaired: verified drafts whose confidences
    were not seen; num_altered: drafts left out because the target's logits were altered.
    """

    def __init__(self) -> None:
        self.num_paired = 0
        self.num_unpaired = 0
        self.num_altered = 0
        self._steps: dict[int, StepConfidences] = {}

    def add(self, step: StepConfidences) -> None:
        """Keep a step; the oldest of too many is forgotten."""
        self._steps[step.source_step_id + 1] = step
        while len(self._steps) > _MAX_STEPS:
            del self._steps[next(iter(self._steps))]

    def take(self, report: StepReport) -> tuple[npt.NDArray[np.int64], Observations] | None:
        """(sampling class [n], observations) of the verified drafts that teach; None for none."""
        step = self._steps.pop(report.step_id, None)
        verified = report.num_verified > 0
        if step is None:
            self.num_unpaired += int(verified.sum())
            return None
        self.num_altered += int((verified & ~report.teaches).sum())
        of_report = np.flatnonzero(verified & report.teaches)
        of_step = _find(step, report, of_report)
        of_report, of_step = of_report[of_step >= 0], of_step[of_step >= 0]
        self.num_unpaired += int((verified & report.teaches).sum()) - len(of_report)
        self.num_paired += len(of_report)
        if not len(of_report):
            return None
        confidence = step.confidence[of_step].astype(np.float64)
        is_valid = (confidence >= 0.0) & (confidence <= 1.0)
        observations = Observations(
            logit=to_logit(np.where(is_valid, confidence, np.nan)),
            num_verified=report.num_verified[of_report].astype(np.int64),
            num_accepted=report.num_accepted[of_report].astype(np.int64),
            group=_key(report.slot_id[of_report], report.generation[of_report]),
        )
        return np.where(step.is_greedy[of_step], GREEDY, SAMPLED).astype(np.int64), observations


def _key(
    slot_id: npt.NDArray[np.uint32], generation: npt.NDArray[np.uint32]
) -> npt.NDArray[np.int64]:
    """One number for each request."""
    return generation.astype(np.int64) << 32 | slot_id.astype(np.int64)


def _find(
    step: StepConfidences, report: StepReport, of_report: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Row in `step` of each row of the report, -1 for none."""
    known = _key(step.slot_id, step.generation)
    order = np.argsort(known, kind="stable")
    wanted = _key(report.slot_id[of_report], report.generation[of_report])
    place = np.minimum(np.searchsorted(known[order], wanted), max(len(known) - 1, 0))
    if not len(known):
        return np.full(len(wanted), -1, dtype=np.int64)
    found = order[place]
    return np.where(known[found] == wanted, found, -1)
