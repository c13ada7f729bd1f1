"""An engine that advances, idles, hangs, ends; on a clock of the test."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from specsched_executor.serve.liveness import EngineWatch


@dataclass
class FakeEngine:
    num_steps: int = 0
    num_running_requests: int = 0
    num_waiting_requests: int = 0
    is_running: bool = True
    now_s: float = 1000.0

    def watch(self) -> EngineWatch:
        return EngineWatch(
            lambda: self, lambda: self.is_running, stall_after_s=120, clock=lambda: self.now_s
        )

    def pass_time(self, watch: EngineWatch, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            watch.look()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def test_an_engine_without_requests_may_idle_for_ever(engine: FakeEngine) -> None:
    watch = engine.watch()
    engine.pass_time(watch, 10_000)
    engine.num_waiting_requests = 1
    assert watch.not_alive() is None


@pytest.mark.parametrize("kind", ["num_running_requests", "num_waiting_requests"])
def test_an_engine_with_requests_must_complete_steps(engine: FakeEngine, kind: str) -> None:
    watch = engine.watch()
    setattr(engine, kind, 1)
    for _ in range(5):
        engine.pass_time(watch, 119)
        assert watch.not_alive() is None
        engine.num_steps += 1
    engine.pass_time(watch, 121)
    told = watch.not_alive()
    assert told == "the engine has requests and completed no step for 120 s"
    engine.num_steps += 1
    assert watch.not_alive() is None


def test_requests_that_come_late_get_their_time(engine: FakeEngine) -> None:
    watch = engine.watch()
    engine.pass_time(watch, 1000)
    engine.num_running_requests = 1
    engine.pass_time(watch, 119)
    assert watch.not_alive() is None


def test_an_engine_that_ended_is_not_alive(engine: FakeEngine) -> None:
    watch = engine.watch()
    engine.is_running = False
    assert watch.not_alive() == "the engine has ended"


async def test_it_looks_by_itself(engine: FakeEngine) -> None:
    watch = engine.watch()
    looking = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    engine.num_running_requests, engine.now_s = 1, engine.now_s + 121
    assert watch.not_alive() is not None  # what was looked at before is what time is counted from
    looking.cancel()
