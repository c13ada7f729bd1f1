"""An engine over an idle device whose users come and go, as front ends bring and take them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from specsched_executor.core import DeltaSink, GenerationRequest
from specsched_executor.engine import Engine, EngineConfig
from specsched_executor.front_end.channel import Channel
from specsched_executor.front_end.order_taker import OrderTaker
from specsched_executor.garbage import keep_what_is_there
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape

from tests.bench.idle_device import idle_parts
from tests.bench.recording import percentiles
from tests.integration.processes import wait_until

__all__ = ["DEVICE_MS", "NUM_FRONT_ENDS", "turnover_us"]

NUM_FRONT_ENDS = 4
DEVICE_MS = 2.0
"""Of a step, in which the engine's thread waits without the interpreter."""
NUM_WINDOWS = 24
WINDOW_STEPS = 100
NUM_WARM_UP_STEPS = 400
TIMEOUT_S = 120.0


class PacedTimeline:
    """A device that is busy for DEVICE_MS with each step."""

    verify_ms = DEVICE_MS
    draft_ms = 0.0

    def __init__(self) -> None:
        self._previous: PacedTimeline | None = None
        self._end_s = 0.0

    def follow(self, previous: PacedTimeline | None) -> None:
        self._previous = previous

    def mark_start(self) -> None:
        begin_s = time.perf_counter()
        if self._previous is not None:
            begin_s = max(begin_s, self._previous._end_s)
        self._end_s = begin_s + DEVICE_MS / 1e3

    def mark_verified(self) -> None:
        pass

    def mark_drafted(self) -> None:
        pass

    def mark_end(self) -> None:
        pass

    def wait(self) -> None:
        time.sleep(max(0.0, self._end_s - time.perf_counter()))


class CountingEngine(Engine):
    """Counts what it takes."""

    num_taken = 0

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        super().submit(request, sink)
        self.num_taken += 1


@contextlib.contextmanager
def _users(engine: Engine, num_users: int, num_tokens: int) -> Iterator[list[OrderTaker]]:
    """In another process, see `coming_and_going`; the order takers that they meet."""
    pairs = [socket.socketpair() for _ in range(NUM_FRONT_ENDS)]
    takers = [
        OrderTaker(Channel(ours), engine, {}, on_message=_refuse, on_end=lambda: None)
        for ours, _ in pairs
    ]
    descriptors = [theirs.fileno() for _, theirs in pairs]
    arguments = [num_users, num_tokens, *descriptors]
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.coming_and_going", *map(str, arguments)],
        pass_fds=descriptors,
    )
    for _, theirs in pairs:
        theirs.close()
    for taker in takers:
        taker.start()
    try:
        yield takers
    finally:
        child.kill()
        child.wait()
        for taker in takers:
            taker.close()


def _refuse(message: Any) -> None:
    raise AssertionError(message)


def _await_steps(engine: Engine, num_steps: int) -> None:
    wait_until(lambda: engine.stats().num_steps >= num_steps, timeout_s=TIMEOUT_S)


def _cpu_us(threads: Sequence[threading.Thread]) -> float:
    clocks = (time.pthread_getcpuclockid(each.ident or 0) for each in threads)
    return sum(time.clock_gettime_ns(clock) for clock in clocks) / 1e3


def turnover_us(
    run_dir: Path, config: EngineConfig, num_users: int, num_tokens: int, *, drafts: bool
) -> dict[str, Any]:
    """CPU time per step of the engine's thread and of those that serve its front ends.

    num_users ask over and over for num_tokens each. Also of steps: their time, and how many
    requests came in them.
    """
    parts = idle_parts(config, drafts=drafts)
    shape = RegionShape(config.max_num_seqs, config.max_draft_tokens)
    transport = SharedMemoryTransport(RunDir.open(run_dir), shape)
    engine = CountingEngine(parts.step._model, parts.step.drafter, transport, config, device=parts)
    engine._loop._runner._timelines = [PacedTimeline() for _ in range(3)]  # type: ignore[attr-defined]
    with _users(engine, num_users, num_tokens) as takers:
        wait_until(lambda: engine.num_taken >= num_users, timeout_s=TIMEOUT_S)
        keep_what_is_there()
        engine.start()
        _await_steps(engine, NUM_WARM_UP_STEPS)
        others = [thread for each in takers for thread in (each._thread, each.outbox._thread)]
        readings = []
        for _ in range(NUM_WINDOWS + 1):
            cpu_us = (_cpu_us([engine._thread]), _cpu_us(others))
            num_steps, num_taken = engine.stats().num_steps, engine.num_taken
            readings.append((*cpu_us, time.perf_counter() * 1e6, num_taken, num_steps))
            _await_steps(engine, num_steps + WINDOW_STEPS)
        stats = engine.stats()
    engine.stop()
    transport.close()
    assert stats.num_failed_steps == 0
    engine_us, others_us, step_us, num_taken, num_steps = np.diff(readings, axis=0).T
    return {
        "num_requests": num_users,
        "num_tokens": num_tokens,
        "drafts": drafts,
        "requests_per_step": round(float(num_taken.sum() / num_steps.sum()), 2),
        "engine_thread_us": percentiles(engine_us / num_steps),
        "other_threads_us": percentiles(others_us / num_steps),
        "step_us": percentiles(step_us / num_steps),
    }
