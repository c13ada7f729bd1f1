"""Each alert on a scheduler fires once what it is about really happens, and not before."""

from __future__ import annotations

import time

import numpy as np
import pytest
from specsched_protocol.v1 import plan_pb2
from specsched_scheduler.policies import PolicyChoice
from specsched_scheduler.policies.registry import BuiltPolicy, build_policy
from specsched_scheduler.policies.spec import PolicySpec

from tests.scheduler_service.telemetry.driving import (
    SHAPE,
    as_said,
    driven,
    none_accepted,
    scrape,
    sure,
    telemetry,
    until,
)
from tests.telemetry.promtool import fired

NUM_STEPS = 96
ENOUGH_TO_JUDGE = 400
"""Steps after which positions have 1000 drafts that did not fade."""
SLOW_PLANS = "SpecschedPlanLatency"


@pytest.fixture
async def scheduler(start):
    running = await start(freeze_learning=True)
    await running.until_serving()
    return running


async def fired_by(scheduler, run_dir, *, hello=None, num_steps=NUM_STEPS, **how) -> set[str]:
    """The alerts after so many steps of a kind, but that on slow plans: others use these cores."""
    async with driven(scheduler, run_dir, **(hello or {})) as executor:
        before = scrape(scheduler)
        await executor.run(scheduler, num_steps, **how)
        return fired(before, scrape(scheduler)) - {SLOW_PLANS}


async def test_a_sound_drafter_on_a_steady_machine_fires_nothing(scheduler, run_dir):
    assert await fired_by(scheduler, run_dir, num_steps=ENOUGH_TO_JUDGE) == set()


async def test_there_is_no_cost_model(scheduler, run_dir):
    hello = {"cost": plan_pb2.CostModel()}
    assert await fired_by(scheduler, run_dir, hello=hello) == {"SpecschedNoCostModel"}


async def test_confidences_freeze(scheduler, run_dir):
    stuck = np.full(SHAPE, 0.9)
    fires = await fired_by(scheduler, run_dir, confidences=lambda rng: stuck)
    assert fires == {"SpecschedConfidenceFrozen"}


async def test_one_changed_bit_is_no_freeze(scheduler, run_dir):
    async with driven(scheduler, run_dir) as executor:
        await executor.run(scheduler, 40, confidences=lambda rng: np.full(SHAPE, 0.9))
        assert telemetry(scheduler).confidences.num_frozen_steps >= 38

        def nudged(rng: np.random.Generator) -> np.ndarray:
            confidence = np.full(SHAPE, 0.9)
            confidence[2, 3] = np.nextafter(np.float32(0.9), np.float32(1.0))
            return confidence

        await executor.run(scheduler, 1, confidences=nudged)
        assert telemetry(scheduler).confidences.num_frozen_steps == 0


async def test_confidences_are_repaired(scheduler, run_dir):
    def broken(rng: np.random.Generator) -> np.ndarray:
        confidence = sure(rng)
        confidence[0, 1] = np.nan
        return confidence

    assert await fired_by(scheduler, run_dir, confidences=broken) == {
        "SpecschedConfidencesRepaired"
    }


async def test_confidences_promise_too_much(scheduler, run_dir):
    def worse(rng: np.random.Generator, confidence: np.ndarray) -> np.ndarray:
        return as_said(rng, confidence * 0.8)

    fires = await fired_by(scheduler, run_dir, num_steps=ENOUGH_TO_JUDGE, outcome=worse)
    assert fires == {"SpecschedMiscalibrated"}


async def test_steps_take_longer_than_predicted(scheduler, run_dir):
    # Still less than without drafts: 3.5 ms for each of the tokens.
    assert await fired_by(scheduler, run_dir, verify_ms=12.5) == {"SpecschedStepTimeOff"}


async def test_drafts_cost_more_than_they_bring(scheduler, run_dir):
    fires = await fired_by(scheduler, run_dir, outcome=none_accepted)
    assert fires == {"SpecschedSlowerThanPlain"}


async def test_steps_come_too_fast_to_be_learned_from(scheduler, run_dir):
    async with driven(scheduler, run_dir) as executor:
        await executor.run(scheduler, 8)
        before = scrape(scheduler)
        num_reports = telemetry(scheduler).learning.num_reports
        for _ in range(400):  # the ring holds 128
            executor.transport.report(executor.report(np.zeros(3, dtype=np.int64), 9.0))
        await executor.run(scheduler, 8)
        await until(lambda: telemetry(scheduler).learning.num_reports > num_reports)
        assert "SpecschedLearningLoses" in fired(before, scrape(scheduler))


class Slow:
    """Takes 6 ms to verify all."""

    def decide(self, step) -> PolicyChoice:
        time.sleep(0.006)
        return PolicyChoice(budget=12)


class Careless:
    def decide(self, step) -> PolicyChoice:
        raise RuntimeError("never thought of this")


def in_python(policy: object) -> BuiltPolicy:
    rule = build_policy("fixed(4)").rule._replace(code=0)
    return BuiltPolicy(PolicySpec("mine", {}, ()), rule, policy)


async def test_the_policy_is_slow(scheduler, run_dir):
    scheduler.server._attachments.set_policy(in_python(Slow()))
    async with driven(scheduler, run_dir) as executor:
        before = scrape(scheduler)
        await executor.run(scheduler, NUM_STEPS)
        assert fired(before, scrape(scheduler)) == {SLOW_PLANS}


async def test_the_learner_fails(scheduler, run_dir):
    def fail(*steps: object) -> None:
        raise RuntimeError("no such load")

    async with driven(scheduler, run_dir) as executor:
        await executor.run(scheduler, 8)
        before = scrape(scheduler)
        (attachment,) = scheduler.server._attachments
        attachment.planning.learning.look(lambda learner: setattr(learner, "observe", fail))
        executor.publish(sure)
        await until(lambda: telemetry(scheduler).learning.num_failures > 0)
        assert "SpecschedLearningFails" in fired(before, scrape(scheduler))


async def test_the_policy_raises(scheduler, run_dir):
    async with driven(scheduler, run_dir) as executor:
        await executor.run(scheduler, 8)
        before = scrape(scheduler)
        scheduler.server._attachments.set_policy(in_python(Careless()))
        executor.publish(sure)
        await until(lambda: telemetry(scheduler).decisions.num_policy_errors == 1)
        after = scrape(scheduler)
        (attachment,) = scheduler.server._attachments
        failures = attachment.status().policy_failures
    assert fired(before, after) - {SLOW_PLANS} == {"SpecschedPolicyErrors"}
    assert (failures.num_requests, failures.policy.name) == (1, "mine")
    assert "policy mine raised RuntimeError: never thought of this (" in failures.error
