"""An executor whose drafts and steps come out as a test says, attached to a real scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
from prometheus_client import generate_latest
from specsched_executor.transport.lanes import LaneOffer
from specsched_protocol.metrics import build_registry
from specsched_protocol.plan import StepDecision, StepReport
from specsched_protocol.run_dir import RunDir
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.telemetry.snapshot import ExecutorSnapshot

from tests.scheduler_service.service.support import (
    MAX_DRAFT_TOKENS,
    NUM_REQUESTS,
    TIMEOUT_S,
    AttachCall,
    Scheduler,
    SharedMemoryExecutor,
    make_step,
)

BURST = 32
"""Steps after which the learner is waited for: its queues hold 128."""
SHAPE = (NUM_REQUESTS, MAX_DRAFT_TOKENS)

Confidences = Callable[[np.random.Generator], np.ndarray]
Outcome = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def sure(rng: np.random.Generator) -> np.ndarray:
    """About 0.9 each: worth verifying all."""
    return rng.uniform(0.88, 0.92, SHAPE)


def as_said(rng: np.random.Generator, confidence: np.ndarray) -> np.ndarray:
    """Accepted as often as the confidences say."""
    held = rng.uniform(size=SHAPE) < confidence
    return np.cumprod(held, axis=1).sum(axis=1)


def none_accepted(rng: np.random.Generator, confidence: np.ndarray) -> np.ndarray:
    return np.zeros(NUM_REQUESTS, dtype=np.int64)


class DrivenExecutor(SharedMemoryExecutor):
    """hello_changes: of what it says of itself. stream: to the scheduler, while attached."""

    stream: AttachCall

    def __init__(self, run_dir: RunDir, **hello_changes: Any) -> None:
        super().__init__(run_dir)
        self._changes = hello_changes
        self._rng = np.random.default_rng(7)

    def hello(self, offer: LaneOffer, **changes: Any) -> pb.Hello:
        return super().hello(offer, **(self._changes | changes))

    async def run(
        self,
        scheduler: Scheduler,
        num_steps: int,
        *,
        confidences: Confidences = sure,
        outcome: Outcome = as_said,
        verify_ms: float = 9.0,
    ) -> None:
        """Steps one after the other, each decided and reported, none lost to a slow learner."""
        done = telemetry(scheduler).learning.num_reports
        for count in range(1, num_steps + 1):
            await self.step(confidences(self._rng), outcome, verify_ms)
            if count % BURST == 0 or count == num_steps:
                await until(lambda n=done + count: telemetry(scheduler).learning.num_reports >= n)

    async def step(self, confidence: np.ndarray, outcome: Outcome, verify_ms: float) -> None:
        """Have the next step decided; report the one that verified the drafts that it is from."""
        self.publish(lambda _: confidence)
        async with asyncio.timeout(TIMEOUT_S):
            while not isinstance(self.transport.read(self._step_id), StepDecision):
                await asyncio.sleep(0)
        self.transport.report(self.report(outcome(self._rng, confidence), verify_ms))

    def publish(self, confidences: Confidences) -> None:
        """Ask for the plan of the next step, with confidences of drafts of two steps before."""
        self._step_id += 1
        rows, request = make_step(self._step_id, 0.0)
        rows.confidence[:] = confidences(self._rng)
        self.transport.publish(rows, request)

    def report(self, num_accepted: np.ndarray, verify_ms: float) -> StepReport:
        """All drafts were verified."""
        num_rows = NUM_REQUESTS * (1 + MAX_DRAFT_TOKENS)
        return StepReport(
            step_id=self._step_id - 1,
            num_tokens=num_rows,
            padded_num_tokens=num_rows,
            num_prefill_tokens=0,
            num_sampling=NUM_REQUESTS,
            asked_draft_tokens=MAX_DRAFT_TOKENS,
            context_tokens=0,
            draft_ms=0.0,
            verify_ms=verify_ms,
            slot_id=np.arange(NUM_REQUESTS, dtype=np.uint32),
            generation=np.ones(NUM_REQUESTS, dtype=np.uint32),
            num_verified=np.full(NUM_REQUESTS, MAX_DRAFT_TOKENS, dtype=np.uint32),
            num_accepted=num_accepted.astype(np.uint32),
            teaches=np.ones(NUM_REQUESTS, dtype=np.bool_),
        )


@contextlib.asynccontextmanager
async def driven(
    scheduler: Scheduler, run_dir: RunDir, **hello_changes: Any
) -> AsyncIterator[DrivenExecutor]:
    """Attached inside the context."""
    with DrivenExecutor(run_dir, **hello_changes) as executor:
        async with executor.attached(scheduler) as executor.stream:
            await until(lambda: scheduler.server.web.telemetry.snapshot().executors)
            yield executor


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)


def telemetry(scheduler: Scheduler) -> ExecutorSnapshot:
    """Of the one executor."""
    (executor,) = scheduler.server.web.telemetry.snapshot().executors
    return executor


def scrape(scheduler: Scheduler) -> str:
    """What /metrics answers."""
    return generate_latest(build_registry(scheduler.server.web.telemetry)).decode()
