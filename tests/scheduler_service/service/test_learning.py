"""Learning beside a real planner: reports in, better decisions and a calibration out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import grpc
import numpy as np
import pytest
from specsched_protocol.plan import StepDecision, StepReport
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests.scheduler_service.service.support import (
    MAX_DRAFT_TOKENS,
    NUM_REQUESTS,
    TIMEOUT_S,
    AttachCall,
    Scheduler,
    SharedMemoryExecutor,
    make_step,
)

ALL_DRAFTS = NUM_REQUESTS * MAX_DRAFT_TOKENS
FLAT_COST = plan_pb2.CostModel(
    verify=[plan_pb2.VerifyCost(tokens=n, ms=[2.0]) for n in (1, 3, 8, 15)],
    capture_limit=15,
    fingerprint="flat",
)
STEEP_COST = plan_pb2.CostModel(
    verify=[plan_pb2.VerifyCost(tokens=n, ms=[2.0 + n / 2]) for n in (1, 3, 8, 15)],
    capture_limit=15,
    fingerprint="steep",
)


class TeachingExecutor:
    """Runs steps whose outcome the test chooses, and reports them."""

    def __init__(self, executor: SharedMemoryExecutor, *, teaches: bool = True) -> None:
        self.transport = executor.transport
        self.step_id = 2
        self.teaches = teaches
        self._rng = np.random.default_rng(5)

    async def run(self, confidence: float, accepts: float, verify_ms: float) -> StepDecision:
        """Plan t + 1, then run t: drafts of this confidence, each accepted with `accepts`."""
        self.step_id += 1
        rows, request = make_step(self.step_id, confidence)
        self.transport.publish(rows, request)
        async with asyncio.timeout(TIMEOUT_S):
            while not isinstance(decision := self.transport.read(self.step_id), StepDecision):
                await asyncio.sleep(0)
        outcomes = self._rng.random((NUM_REQUESTS, MAX_DRAFT_TOKENS)) < accepts
        accepted = np.cumprod(outcomes, axis=1).sum(axis=1).astype(np.uint32)
        # The confidences just published are those of the drafts that this step verifies.
        self.transport.report(
            StepReport(
                step_id=self.step_id - 1,
                num_tokens=NUM_REQUESTS + ALL_DRAFTS,
                padded_num_tokens=NUM_REQUESTS + ALL_DRAFTS,
                num_prefill_tokens=0,
                num_sampling=NUM_REQUESTS,
                asked_draft_tokens=MAX_DRAFT_TOKENS,
                context_tokens=0,
                draft_ms=0.0,
                verify_ms=verify_ms,
                slot_id=request.slot_id,
                generation=request.generation,
                num_verified=np.full(NUM_REQUESTS, MAX_DRAFT_TOKENS, dtype=np.uint32),
                num_accepted=accepted,
                teaches=np.full(NUM_REQUESTS, self.teaches),
            )
        )
        return decision


async def learning_of(scheduler: Scheduler) -> pb.AttachmentLearning:
    answer = await scheduler.stub.GetLearning(pb.GetLearningRequest(), timeout=TIMEOUT_S)
    (attachment,) = answer.attachments
    return attachment


async def attach(scheduler: Scheduler, executor: SharedMemoryExecutor, **changes):
    """(stream, lane) of an attached executor whose decisions count."""
    offer = executor.transport.open_lane()
    stream = AttachCall(scheduler.stub)
    await stream.send(hello=executor.hello(offer, **changes))
    await stream.receive("welcome")
    await stream.receive("ready")
    executor.transport.lane_ready(offer.lane)
    executor.transport.activate(offer.lane)
    return stream, offer.lane


async def detach(stream, executor: SharedMemoryExecutor, lane: int) -> None:
    stream.call.cancel()
    executor.transport.close_lane(lane)


async def settle(
    scheduler: Scheduler,
    teacher: TeachingExecutor,
    *step: float,
    until: Callable[[StepDecision], bool] = lambda _: False,
    num_steps: int = 3000,
) -> StepDecision:
    """Run steps, no faster than they can be learned from, until a decision is as awaited."""
    before = (await learning_of(scheduler)).counters.num_reports
    for index in range(num_steps):
        decision = await teacher.run(*step)
        if index % 32 == 31:
            async with asyncio.timeout(TIMEOUT_S):
                while (await learning_of(scheduler)).counters.num_reports <= before + index:
                    await asyncio.sleep(0.01)
            if until(decision):
                break
    return decision


def verifies_nothing(decision: StepDecision) -> bool:
    return decision.budget == 0


async def test_overconfidence_is_mended_in_decisions_and_told_to_the_executor(scheduler, executor):
    """Drafts that claim 0.9 and are accepted in one of ten cases are not verified for long."""
    stream, lane = await attach(scheduler, executor, cost=STEEP_COST)
    teacher = TeachingExecutor(executor)
    first = await teacher.run(0.9, 0.1, 9.5)
    assert first.budget > 0
    assert first.expected_tokens > NUM_REQUESTS + 1
    last = await settle(scheduler, teacher, 0.9, 0.1, 9.5, until=verifies_nothing)
    assert last.budget == 0
    learning = await learning_of(scheduler)
    assert learning.counters.num_paired_drafts > 200
    assert learning.counters.num_lost_reports == learning.counters.num_lost_confidences == 0
    assert learning.sampled.positions[0].raw_share == pytest.approx(0.9, abs=0.01)
    assert learning.sampled.positions[0].accepted_share == pytest.approx(0.1, abs=0.06)
    # What is believed need not come all the way: it is no longer verified, so no more is learned.
    assert 0.05 < learning.sampled.positions[0].calibrated_share < 0.5
    assert learning.greedy.num_drafts == 0
    told = await stream.receive("calibration")
    while told.sampled.intercept[0] == 0.0:
        told = await stream.receive("calibration")
    position = learning.sampled.positions[0]
    logit = np.log(9.0) / told.sampled.temperature[0] + told.sampled.intercept[0]
    assert 1.0 / (1.0 + np.exp(-logit)) == pytest.approx(position.calibrated_share, abs=0.02)
    assert list(told.greedy.intercept) == [0.0] * MAX_DRAFT_TOKENS
    await detach(stream, executor, lane)


async def test_a_wrong_profile_is_mended(scheduler, executor):
    """The profile says that rows are free; steps of 15 rows take four times as long."""
    stream, lane = await attach(scheduler, executor, cost=FLAT_COST)
    teacher = TeachingExecutor(executor)
    first = await teacher.run(0.3, 0.3, 8.0)
    assert first.budget == ALL_DRAFTS
    await settle(
        scheduler, teacher, 0.3, 0.3, 8.0, until=lambda decision: decision.expected_ms > 7.6
    )
    cost = (await learning_of(scheduler)).cost
    assert cost.in_use
    by_rows = {each.tokens: each for each in cost.sizes}
    assert by_rows[15].profiled_ms == 2.0
    assert by_rows[15].corrected_ms == pytest.approx(8.0, rel=0.05)
    last = await teacher.run(0.3, 0.3, 8.0)
    assert last.expected_ms == pytest.approx(8.0, rel=0.05)
    assert first.expected_ms == pytest.approx(2.0)
    await detach(stream, executor, lane)


async def test_altered_logits_do_not_teach(scheduler, executor):
    stream, lane = await attach(scheduler, executor, cost=STEEP_COST)
    teacher = TeachingExecutor(executor, teaches=False)
    await settle(scheduler, teacher, 0.9, 0.1, 9.5, num_steps=320)
    learning = await learning_of(scheduler)
    assert learning.counters.num_altered_drafts > 500
    assert learning.counters.num_paired_drafts == learning.sampled.num_drafts == 0
    assert (await teacher.run(0.9, 0.1, 9.5)).budget > 0
    await detach(stream, executor, lane)


async def test_frozen_it_learns_nothing_and_resumes(start, run_dir, executor):
    scheduler = await start(freeze_learning=True)
    await scheduler.until_serving()
    stream, lane = await attach(scheduler, executor, cost=STEEP_COST)
    teacher = TeachingExecutor(executor)
    await settle(scheduler, teacher, 0.9, 0.1, 9.5, num_steps=320)
    learning = await learning_of(scheduler)
    assert learning.counters.num_paired_drafts > 500
    assert learning.sampled.num_drafts == learning.cost.num_samples == 0
    answer = await scheduler.stub.SetLearning(pb.SetLearningRequest(frozen=False))
    assert (answer.frozen, answer.was_frozen) == (False, True)
    assert (await settle(scheduler, teacher, 0.9, 0.1, 9.5, until=verifies_nothing)).budget == 0
    await detach(stream, executor, lane)


async def test_what_one_scheduler_learned_another_begins_with(scheduler, start, executor, tmp_path):
    stream, lane = await attach(scheduler, executor, cost=STEEP_COST)
    teacher = TeachingExecutor(executor)
    await settle(scheduler, teacher, 0.9, 0.1, 9.5, until=verifies_nothing)
    await detach(stream, executor, lane)

    async def has_left() -> bool:
        return not (await scheduler.status()).attachments

    async with asyncio.timeout(TIMEOUT_S):
        while not await has_left():
            await asyncio.sleep(0.01)
    exported = await scheduler.stub.ExportState(pb.ExportStateRequest())
    (entry,) = json.loads(exported.document)["entries"]
    assert (entry["model"], entry["max_draft_tokens"]) == ("tiny", MAX_DRAFT_TOKENS)
    assert entry["calibration"]["sampled"]["intercept"][0] < -1.0

    heir = await start(name="heir")
    await heir.until_serving()
    answer = await heir.stub.ImportState(pb.ImportStateRequest(document=exported.document))
    assert (answer.num_entries, answer.num_applied) == (1, 0)
    stream, lane = await attach(heir, executor, cost=STEEP_COST)
    told = await stream.receive("calibration")
    expected = entry["calibration"]["sampled"]["intercept"]
    assert list(told.sampled.intercept) == pytest.approx(expected)
    assert (await teacher.run(0.9, 0.1, 9.5)).budget == 0
    await detach(stream, executor, lane)


async def test_an_import_reaches_who_is_attached(scheduler, executor):
    stream, lane = await attach(scheduler, executor, cost=STEEP_COST)
    teacher = TeachingExecutor(executor)
    assert (await teacher.run(0.9, 0.1, 9.5)).budget > 0
    part = {"temperature": [1.0] * MAX_DRAFT_TOKENS, "intercept": [-3.0] * MAX_DRAFT_TOKENS}
    entry = {
        "model": "",
        "drafter": "",
        "max_draft_tokens": MAX_DRAFT_TOKENS,
        "calibration": {"greedy": part, "sampled": part},
    }
    document = {"format": "specsched-learned-state", "version": 1, "entries": [entry]}
    request = pb.ImportStateRequest(document=json.dumps(document))
    assert (await scheduler.stub.ImportState(request)).num_applied == 1
    async with asyncio.timeout(TIMEOUT_S):  # the learner is woken, and may come some steps later
        while (await teacher.run(0.9, 0.1, 9.5)).budget > 0:
            await asyncio.sleep(0.01)
    entry["max_draft_tokens"] = 2
    with pytest.raises(grpc.aio.AioRpcError, match=r"greedy\.temperature has 4 values") as refusal:
        await scheduler.stub.ImportState(pb.ImportStateRequest(document=json.dumps(document)))
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await teacher.run(0.9, 0.1, 9.5)).budget == 0
    await detach(stream, executor, lane)


async def test_what_the_executor_measured_beforehand_is_the_start(scheduler, executor):
    part = pb.ClassCalibration(
        temperature=[1.0] * MAX_DRAFT_TOKENS, intercept=[-3.0] * MAX_DRAFT_TOKENS
    )
    measured = pb.Calibration(greedy=part, sampled=part)
    stream, lane = await attach(scheduler, executor, cost=STEEP_COST, calibration=measured)
    assert await stream.receive("calibration") == measured
    assert (await TeachingExecutor(executor).run(0.9, 0.9, 9.5)).budget == 0
    await detach(stream, executor, lane)


async def test_calibration_is_left_out_of_budgets_and_ranking_as_long_as_the_policy_says(
    scheduler, executor
):
    part = pb.ClassCalibration(
        temperature=[1.0] * MAX_DRAFT_TOKENS, intercept=[-3.0] * MAX_DRAFT_TOKENS
    )
    measured = pb.Calibration(greedy=part, sampled=part)
    stream, lane = await attach(scheduler, executor, cost=STEEP_COST, calibration=measured)
    teacher = TeachingExecutor(executor, teaches=False)
    assert await stream.receive("calibration") == measured
    await scheduler.set_policy("throughput", calibration=0)
    await stream.receive("policy_changed")
    told = await stream.receive("calibration")
    assert list(told.sampled.intercept) == list(told.greedy.intercept) == [0.0] * MAX_DRAFT_TOKENS
    assert (await teacher.run(0.9, 0.9, 9.5)).budget > 0
    await scheduler.set_policy("throughput")
    await stream.receive("policy_changed")
    assert await stream.receive("calibration") == measured
    assert (await teacher.run(0.9, 0.9, 9.5)).budget == 0
    await detach(stream, executor, lane)


async def test_an_impossible_calibration_is_refused_by_name(scheduler, executor):
    offer = executor.transport.open_lane()
    part = pb.ClassCalibration(temperature=[1.0], intercept=[0.0])
    stream = AttachCall(scheduler.stub)
    await stream.send(hello=executor.hello(offer, calibration=pb.Calibration(sampled=part)))
    code, details = await stream.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "calibration.sampled.temperature has 1 values" in details
    executor.transport.close_lane(offer.lane)
