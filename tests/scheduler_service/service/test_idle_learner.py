"""A learner with nothing to learn from does nothing, however often it wakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from specsched_scheduler.learning.learner import ExecutorKind, Learner
from specsched_scheduler.service.learning import LearningThread

from tests.protos.builders import make_report, make_request, make_rows
from tests.scheduler_service.planner.rig import FLAT, K, Rig, wait_until

NUM_WAKES = 3


class WatchedLearning:
    """A learner beside a planner; calls: how often it woke and what it did, by name."""

    def __init__(self, rig: Rig) -> None:
        self.calls: Counter[str] = Counter()
        self.rig = rig
        self._step_id = 7
        self.planner = rig.attach(cost_model=FLAT)
        self.learner = Learner(ExecutorKind("model", "drafter", K), FLAT)
        self.thread = LearningThread(self.planner, self.learner)
        for name in ("on_reports", "on_followed"):
            self._count(self.thread, name)
        for name in ("observe", "update", "probe_rows", "entry"):
            self._count(self.learner, name)
        for name in ("drain_reports", "set_draft_plans", "publish", "ask_probe"):
            self._count(self.planner, name)
        self.thread.start()

    def step(self) -> None:
        """Decide a step, and report the one before."""
        self._step_id += 1
        self.rig.plan(make_request(self._step_id), make_rows(self._step_id - 2))
        self.rig.transport.report(make_report(self._step_id - 1))

    def wake(self, num_times: int = NUM_WAKES) -> Counter[str]:
        """What it does in so many whole rounds, of which there is one at least for each wake."""
        before = self.calls.copy()
        for _ in range(num_times + 1):  # the last begins when those before are over
            seen = self.calls["drain_reports"]
            self.planner.lesson_bell.ring()
            wait_until(lambda seen=seen: self.calls["drain_reports"] > seen)
        return self.calls - before

    def _count(self, of: object, name: str) -> None:
        method = getattr(of, name)

        def counted(*args: object) -> object:
            self.calls[name] += 1
            return method(*args)

        setattr(of, name, counted)


@pytest.fixture
def learning(tmp_path: Path) -> Iterator[WatchedLearning]:
    rig = Rig(tmp_path)
    watched = WatchedLearning(rig)
    yield watched
    watched.thread.stop()
    rig.close()


def test_nothing_is_done_before_the_first_step(learning: WatchedLearning) -> None:
    assert set(learning.wake()) == {"drain_reports"}


def test_nothing_is_done_after_the_last_step(learning: WatchedLearning) -> None:
    for _ in range(3):
        learning.step()
    wait_until(lambda: learning.calls["update"] > 0)
    wait_until(lambda: set(learning.wake()) == {"drain_reports"})  # a fit may be due later
    assert learning.planner.counters().num_reports == 3
    assert set(learning.wake()) == {"drain_reports"}


def test_a_decision_is_taken_in_without_a_report(learning: WatchedLearning) -> None:
    learning.wake(1)
    before = learning.calls["on_followed"]
    learning.rig.plan(make_request(8))
    learning.wake(1)
    assert learning.calls["on_followed"] == before + 1


def test_what_no_decision_took_yet_is_not_published_again(learning: WatchedLearning) -> None:
    """Nor tried to be: two restored states without a step between them, then one."""
    learning.wake(1)
    before = learning.calls["publish"]
    entry = learning.learner.entry()
    for _ in range(2):
        learning.thread.restore(entry)
        learning.wake()
    assert learning.calls["publish"] == before
    learning.step()
    learning.wake(1)
    assert learning.calls["publish"] == before + 1
    assert set(learning.wake()) == {"drain_reports"}
