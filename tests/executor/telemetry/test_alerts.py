"""Each alert on an executor fires once what it is about really happens, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from prometheus_client import generate_latest
from specsched_executor.attach import AttachConfig, AttachManager, AttachTotals
from specsched_executor.telemetry import ExecutorHealth, RequestMeter
from specsched_executor.telemetry.telemetry import ExecutorTelemetry, Links
from specsched_protocol.http.listeners import Listeners
from specsched_protocol.http.server import HttpServer
from specsched_protocol.metrics import build_registry
from specsched_protocol.plan import FallbackReason
from specsched_protocol.run_dir import RunDir
from specsched_protocol.v1 import executor_pb2

from tests.executor.attach.scripted_scheduler import ScriptedScheduler
from tests.executor.attach.support import FACTS, FAST, RecordingLanes, eventually
from tests.executor.engine.tiny import (
    Driver,
    ScriptedTransport,
    SilentTransport,
    StochasticDrafter,
    TableTarget,
    config,
    random_table,
)
from tests.telemetry.promtool import fired, scraped_up

VOCAB = 5


@dataclass
class Executor:
    """A real step loop with real links to schedulers, and the telemetry of both."""

    driver: Driver
    lanes: RecordingLanes = field(default_factory=RecordingLanes)
    manager: AttachManager | None = None

    def scrape(self) -> str:
        telemetry = ExecutorTelemetry("table", self.driver.loop, RequestMeter(), self.links)
        return generate_latest(build_registry(telemetry)).decode()

    def links(self) -> Links:
        if self.manager is None:
            return Links(False, executor_pb2.ListSchedulersResponse(), AttachTotals())
        known = executor_pb2.ListSchedulersResponse(
            schedulers=[info.to_message() for info in self.manager.attachments()],
            num_switches=self.manager.num_switches(),
        )
        return Links(True, known, self.manager.totals())

    def generate(self, num_requests: int = 2, max_tokens: int = 40) -> None:
        for seed in range(num_requests):
            self.driver.submit([0, 1, 2], seed=seed, max_tokens=max_tokens, ignore_eos=True)
        self.driver.run()


def driver(transport, **sizes) -> Driver:
    drafter = StochasticDrafter(random_table(VOCAB, 3)[0], 3)
    return Driver(TableTarget(random_table(VOCAB, 11)), drafter, transport, config(**sizes))


def planned() -> ScriptedTransport:
    """Every step has its plan in time: verify all."""
    return ScriptedTransport(lambda rows, request: int(request.num_draft_tokens.sum()))


@contextmanager
def attached(executor: Executor, run_dir: RunDir, config: AttachConfig = FAST) -> Iterator[None]:
    executor.manager = AttachManager(run_dir, executor.lanes, FACTS, config)
    executor.manager.start()
    try:
        yield
    finally:
        executor.manager.stop()


@pytest.fixture
def run_dir(tmp_path) -> RunDir:
    return RunDir.open(tmp_path / "run")


@pytest.fixture
def scheduler_at(run_dir) -> Iterator[Callable[[str], ScriptedScheduler]]:
    running: list[ScriptedScheduler] = []

    def start(name: str) -> ScriptedScheduler:
        running.append(ScriptedScheduler(run_dir.scheduler_socket(name)))
        return running[-1]

    yield start
    for scheduler in running:
        scheduler.stop()


def test_a_healthy_executor_fires_nothing(run_dir, scheduler_at):
    executor = Executor(driver(planned()))
    scheduler_at("v1")
    with attached(executor, run_dir):
        eventually(lambda: len(executor.manager.attachments()) == 1)
        before = executor.scrape()
        executor.generate()
        assert fired(before, executor.scrape()) == set()


def test_steps_fail():
    executor = Executor(driver(planned()))
    before = executor.scrape()
    executor.driver.target.fail_next = True
    executor.generate(1)
    assert fired(before, executor.scrape(), at="3m", goes_on=False) == {"SpecschedStepsFail"}


def test_requests_queue():
    executor = Executor(driver(planned(), max_num_seqs=1))
    for seed in range(3):
        executor.driver.submit([0, 1], seed=seed, max_tokens=40, ignore_eos=True)
    before = executor.scrape()
    executor.driver.loop.step()
    assert fired(before, executor.scrape()) == {"SpecschedQueueing"}


def test_requests_are_preempted():
    executor = Executor(driver(planned(), num_kv_blocks=20))
    before = executor.scrape()
    executor.generate(4, max_tokens=60)
    assert executor.driver.loop.stats().num_preemptions > 0
    assert fired(before, executor.scrape()) == {"SpecschedPreempting"}


def test_plans_are_late():
    executor = Executor(driver(SilentTransport(FallbackReason.LATE)))
    before = executor.scrape()
    executor.generate()
    assert fired(before, executor.scrape()) == {"SpecschedPlansMissed"}


def test_nobody_is_followed(run_dir):
    executor = Executor(driver(SilentTransport()))
    with attached(executor, run_dir):
        before = executor.scrape()
        executor.generate()
        assert fired(before, executor.scrape()) == {"SpecschedNoScheduler"}


def test_a_scheduler_crashes(run_dir, scheduler_at):
    executor = Executor(driver(planned()))
    first = scheduler_at("v1")
    with attached(executor, run_dir):
        eventually(lambda: len(executor.manager.attachments()) == 1)
        scheduler_at("v2")
        eventually(lambda: len(executor.manager.attachments()) == 2)
        before = executor.scrape()
        first.stop()
        eventually(lambda: executor.manager.totals().num_crashed == 1)
        eventually(lambda: executor.links().schedulers.num_switches["lost"] == 1)
        after = executor.scrape()
    assert fired(before, after, at="5m", goes_on=False) == {"SpecschedSchedulerCrashed"}


def test_a_scheduler_is_given_up(run_dir, scheduler_at):
    executor = Executor(driver(planned()))
    scheduler_at("v1")
    with attached(executor, run_dir, replace(FAST, supervise_ms=5)):
        eventually(lambda: len(executor.manager.attachments()) == 1)
        scheduler_at("v2")
        eventually(lambda: len(executor.manager.attachments()) == 2)
        before = executor.scrape()
        active = next(info for info in executor.manager.attachments() if info.active)
        for _ in range(3):
            executor.lanes.lane(active.lane).health.fault(FallbackReason.IMPOSSIBLE, 0)
        eventually(lambda: executor.links().schedulers.num_switches["garbage"] == 1)
        after = executor.scrape()
    assert fired(before, after, at="5m", goes_on=False) == {"SpecschedSchedulerGivenUp"}


async def test_a_process_is_gone():
    telemetry = ExecutorTelemetry(
        "table", driver(planned()).loop, RequestMeter(), Executor(driver(planned())).links
    )
    with Listeners.bind("127.0.0.1:0", None, 0) as listeners:
        server = HttpServer(build_registry(telemetry), ExecutorHealth())
        await server.start(listeners)
        port = server.port
        up = scraped_up(answers=await answers(port))
        await server.stop()
    down = scraped_up(answers=await answers(port))
    for job in ("specsched-executor", "specsched-scheduler"):
        assert fired(up, up, job=job) == set()
        assert fired(up, down, job=job) == {"SpecschedDown"}


async def answers(port: int) -> bool:
    """Whether a scrape gets metrics."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    reply = await reader.read()
    writer.close()
    return b" 200 " in reply and b"specsched_steps_total" in reply


def test_drafts_are_told_apart_and_counted_once():
    """drafted >= scheduled >= verified >= accepted, by step; the same totals as the engine's."""
    executor = Executor(driver(ScriptedTransport(lambda rows, request: 2)))
    executor.generate()
    stats, outcomes = executor.driver.loop.stats(), executor.driver.loop.outcomes
    assert stats.num_drafted_tokens > stats.num_scheduled_tokens >= stats.num_verified_tokens
    assert stats.num_verified_tokens > stats.num_accepted_tokens > 0
    assert sum(outcomes.num_accepted_by_position) == stats.num_accepted_tokens
    assert list(outcomes.num_accepted_by_position) == sorted(
        outcomes.num_accepted_by_position, reverse=True
    )
    reports = executor.driver.transport.reports
    assert outcomes.num_drafts == sum(int((r.num_verified > 0).sum()) for r in reports)
    accepted = np.concatenate([r.num_accepted for r in reports])
    assert outcomes.num_accepted_by_position == [int((accepted > j).sum()) for j in range(3)]
    assert sum(outcomes.seconds.counts) == stats.num_steps
