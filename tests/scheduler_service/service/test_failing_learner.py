"""A learner that fails at every turn: decisions go on, and the log stays readable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from specsched_scheduler.learning.learner import ExecutorKind, Learner
from specsched_scheduler.service.learning import LearningThread
from structlog.testing import capture_logs

from tests.protos.builders import make_report, make_request, make_rows
from tests.scheduler_service.planner.rig import FLAT, K, Rig, wait_until

NUM_TURNS = 12


class FailingLearner(Learner):
    """Fails at the steps that it is told of, as long as `is_broken`."""

    is_broken = True

    def observe(self, *steps: object) -> None:
        if self.is_broken:
            raise RuntimeError("no such load")
        super().observe(*steps)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def step(rig: Rig, step_id: int) -> None:
    """Decide a step, report the one before, and have the learner see both."""
    rig.plan(make_request(step_id), make_rows(step_id - 2))
    rig.transport.report(make_report(step_id - 1))
    rig.planners[-1].lesson_bell.ring()


def test_it_is_frozen_counted_and_logged_with_one_traceback(rig: Rig) -> None:
    planner = rig.attach(cost_model=FLAT)
    learner = FailingLearner(ExecutorKind("model", "drafter", K), FLAT)
    learning = LearningThread(planner, learner)
    with capture_logs() as logs:
        learning.start()
        for step_id in range(8, 8 + NUM_TURNS):
            seen = learning.num_failures
            step(rig, step_id)
            wait_until(lambda seen=seen: learning.num_failures > seen)
        learning.stop()
    assert learner.is_frozen
    assert planner.counters().num_decisions == NUM_TURNS
    failed = [line for line in logs if line["event"] == "learning failed, it goes on frozen"]
    assert failed[0]["reason"] == "RuntimeError: no such load"
    assert [line for line in failed if "exc_info" in line] == failed[:1]
    assert len(failed) < learning.num_failures


def test_resumed_it_learns_again(rig: Rig) -> None:
    planner = rig.attach(cost_model=FLAT)
    learner = FailingLearner(ExecutorKind("model", "drafter", K), FLAT)
    learning = LearningThread(planner, learner)
    with capture_logs():
        learning.start()
        step(rig, 8)
        wait_until(lambda: learning.num_failures > 0)
        learner.is_broken = False
        learning.set_frozen(is_frozen=False)
        before = planner.counters().num_reports
        step(rig, 9)
        wait_until(lambda: planner.counters().num_reports > before)
        learning.stop()
    assert not learner.is_frozen
