"""A fresh scheduler process decides by what the one before it learned: as it joins, and promoted.

Both freeze what they know, so that nothing but what is handed over makes them alike. In between the
fresh one is made to believe the profile and the drafter, to see that this would show.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from specsched_client import SchedulerClient
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.document import (
    CostPart,
    LearnedState,
    calibration_part,
    read_state,
    write_state,
)

from tests.integration.boasting_executor import BoastingExecutor, K, Watch, serving
from tests.integration.processes import SchedulerProcess, start_scheduler, wait_until

pytestmark = pytest.mark.slow

NUM_STEPS = 50
CHEAP_ROW_S = 0.0001
"""Drafts are worth it, though by far not as much as the drafter claims."""


def learning_of(scheduler: SchedulerProcess) -> pb.AttachmentLearning:
    with SchedulerClient(scheduler.target) as operator:
        (attachment,) = operator.learning(timeout_s=30).attachments
    return attachment


def has_found_out(scheduler: SchedulerProcess) -> bool:
    """Whether it believes neither the profile nor the drafter any more."""
    learning = learning_of(scheduler)
    position = learning.sampled.positions[0]
    error = abs(position.calibrated_share - position.accepted_share)
    return learning.cost.in_use and position.intercept != 0.0 and error < 0.05


def calibration_of(scheduler: SchedulerProcess) -> list[tuple[float, float]]:
    return [(p.temperature, p.intercept) for p in learning_of(scheduler).sampled.positions]


def make_credulous(scheduler: SchedulerProcess) -> None:
    """Have it believe the profile and the drafter, as if nothing had been learned."""
    calibration = calibration_part(Calibration.identity(K), (0, 0))
    cost = CostPart(offset_ms=0.0, scale=1.0, ms_per_context_token=0.0)
    with SchedulerClient(scheduler.target) as operator:
        (entry,) = read_state(operator.export_state(timeout_s=30)).entries
        changes = {"calibration": calibration, "cost": cost, "draft_length": None}
        believed = LearnedState(entries=(entry.model_copy(update=changes),))
        assert operator.import_state(write_state(believed), timeout_s=30).num_applied == 1


def promote(scheduler: SchedulerProcess) -> None:
    with SchedulerClient(scheduler.target) as operator:
        (change,) = operator.promote(timeout_s=60).executors
    assert change.reply.done, change.reply


class Comparison:
    """Two schedulers' decisions for the same steps, those in which requests have confidences.

    Where they have none each goes by the mean of the steps that it saw itself.
    """

    def __init__(self, executor: BoastingExecutor, old: str, fresh: str) -> None:
        self._executor = executor
        self._watches = (Watch(old), Watch(fresh))

    def difference(self) -> float:
        """Share by which expected tokens differ in steps that both decided, after 50 more."""
        self._executor.answer(NUM_STEPS)
        begins = [len(watch.decisions) for watch in self._watches]
        pairs: list[tuple[float, float]] = []

        def has_enough() -> bool:
            self._executor.answer(30)
            old, fresh = (
                {
                    each.step_id: each
                    for each in watch.decisions[begin:]
                    if plan_pb2.DECISION_FLAG_PRIOR not in each.flags
                }
                for watch, begin in zip(self._watches, begins, strict=True)
            )
            pairs[:] = [
                (old[step].expected_tokens, fresh[step].expected_tokens)
                for step in sorted(old.keys() & fresh.keys())
            ]
            return len(pairs) >= NUM_STEPS

        wait_until(has_enough, timeout_s=120)
        old_tokens, fresh_tokens = map(sum, zip(*pairs[:NUM_STEPS], strict=True))
        return abs(fresh_tokens - old_tokens) / old_tokens


def test_a_fresh_process_decides_by_what_the_old_one_learned(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with start_scheduler(run_dir, name="old") as old, serving(run_dir, CHEAP_ROW_S) as executor:
        wait_until(lambda: len(executor.attacher.attachments()) == 1)

        def has_learned_enough() -> bool:
            executor.answer(60)
            return has_found_out(old)

        wait_until(has_learned_enough, timeout_s=120)
        with SchedulerClient(old.target) as operator:
            operator.set_learning(frozen=True, timeout_s=30)
        known = calibration_of(old)
        with start_scheduler(run_dir, "--freeze-learning", name="fresh") as fresh:
            wait_until(lambda: len(executor.attacher.attachments()) == 2)
            wait_until(lambda: calibration_of(fresh) == known)
            compared = Comparison(executor, old.target, fresh.target)
            assert compared.difference() < 0.01

            make_credulous(fresh)
            assert compared.difference() > 0.05

            def has_taken_over() -> bool:
                """A busy machine may be late with the state, and is switched without it."""
                promote(old)
                promote(fresh)
                return calibration_of(fresh) == known

            wait_until(has_taken_over, timeout_s=120)
            assert executor.attacher.elected_name == "fresh"
            assert compared.difference() < 0.01
            assert calibration_of(old) == known  # it was promoted by one that knew less
            assert learning_of(fresh).draft_length.loads == learning_of(old).draft_length.loads
