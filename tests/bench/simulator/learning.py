"""A simulated scheduler that calibrates and corrects costs too, by the product's own learner."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from specsched_protocol.plan import StepReport
from specsched_scheduler.decision import Feature
from specsched_scheduler.decision.calibration import SAMPLED, calibrate
from specsched_scheduler.decision.finished import finished_steps
from specsched_scheduler.decision.step import StepInput
from specsched_scheduler.learning.learner import ExecutorKind, Learner
from specsched_scheduler.learning.pairing import DraftedSteps

from tests.bench.simulator.machine import Machine
from tests.bench.simulator.scheduler import Plan, Scheduler
from tests.bench.simulator.workload import Workload

__all__ = ["LearningScheduler"]

Ints = npt.NDArray[np.int64]
Confidences = npt.NDArray[np.float32]

UPDATE_STEPS = 32
"""Steps from one fit to the next, as under load."""


class LearningScheduler(Scheduler):
    """Learns what its policy does not leave out. It is slow: most of a run is fits."""

    def __init__(self, policy: str, workload: Workload, machine: Machine, seed: int) -> None:
        super().__init__(policy, workload, machine, seed)
        kind = ExecutorKind("simulated", "simulated", workload.recordings.max_draft_tokens)
        self.learner = Learner(kind, self.profile)
        self._calibration = self.learner.calibrator.calibration.compile()
        self._drafted: DraftedSteps | None = None

    def judged(self, confidence: Confidences) -> Confidences:
        """As calibrated."""
        judged: Confidences = calibrate(
            self._calibration, np.full(len(confidence), SAMPLED), confidence
        ).astype(np.float32)
        return judged

    def plan(self, step_id: int, step: StepInput, slots: Ints, generations: Ints) -> Plan:
        """Keep the confidences, which are of the drafts that step_id - 1 verifies."""
        seen = step.has_confidence > 0
        self._drafted = DraftedSteps(
            source_step_id=np.array([step_id - 2]),
            row_begin=np.array([0, seen.sum()]),
            slot_id=slots[seen].astype(np.uint32),
            generation=generations[seen].astype(np.uint32),
            is_greedy=np.zeros(seen.sum(), dtype=np.bool_),
            confidence=step.confidence[seen],
        )
        return super().plan(step_id, step, slots, generations)

    def learn(self, report: StepReport) -> None:
        """Read the report of a finished step, and fit where it is time to."""
        super().learn(report)
        assert self._drafted is not None, "a step is reported after the next one was planned"
        self.learner.observe(finished_steps([report]), self._drafted)
        if report.step_id % UPDATE_STEPS == 0 and self.learner.update():
            if not self.rule.left_out & Feature.CALIBRATION:
                self._calibration = self.learner.calibrator.calibration.compile()
            if not self.rule.left_out & Feature.CORRECTION:
                self.table = self.learner.table
