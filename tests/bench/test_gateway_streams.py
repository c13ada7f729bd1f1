"""What streaming costs the engine's thread: the time its sinks take, and the pace it keeps.

An engine stand-in steps every 3 ms and hands each stream one token per step; a client in another
process reads all streams over real gRPC.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from specsched_executor.core import DeltaSink, GenerationRequest, TokenDelta

from tests.bench.conftest import RecordBench
from tests.bench.recording import percentiles
from tests.executor.gateway.fakes import FakeEngine, serving_in_thread

pytestmark = pytest.mark.bench

STEP_MS = 3.0
NUM_STEPS = 1500
NUM_WARM_UP_STEPS = 200
STREAMS = (1, 16, 64, 256)

READER = """
import asyncio, sys
from specsched_client import AsyncClient

async def read(client):
    return len([delta async for delta in client.stream([3])])

async def main(target, num_streams):
    async with AsyncClient(target) as client:
        counts = await asyncio.gather(*(read(client) for _ in range(num_streams)))
    print(sum(counts))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


class SteppingEngine(FakeEngine):
    """Steps once all streams are there. Per step: when it began, and how long its sinks took."""

    def __init__(self, num_streams: int) -> None:
        super().__init__()
        self._num_streams = num_streams
        self.begin_s: list[float] = []
        self.sinks_s: list[float] = []
        self.thread = threading.Thread(target=self._run)

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        super().submit(request, sink)
        if len(self.sinks) == self._num_streams:
            self.thread.start()

    def _run(self) -> None:
        streams = list(self.sinks.items())
        for step in range(NUM_STEPS):
            # Stands for the device at work: the thread waits without the GIL.
            time.sleep(STEP_MS / 1e3)
            begin = time.perf_counter()
            reason = "length" if step == NUM_STEPS - 1 else None
            for request_id, sink in streams:
                sink(TokenDelta(request_id, (5,), finish_reason=reason))
            self.begin_s.append(begin)
            self.sinks_s.append(time.perf_counter() - begin)


def measure(num_streams: int) -> dict[str, Any]:
    engine = SteppingEngine(num_streams)
    with serving_in_thread(engine) as target:
        reader = subprocess.run(
            [sys.executable, "-c", READER, target, str(num_streams)],
            capture_output=True,
            text=True,
            check=True,
        )
        engine.thread.join()
    num_messages = int(reader.stdout)
    return {
        "num_streams": num_streams,
        "sinks_us_per_step": percentiles(in_us(engine.sinks_s)),
        "step_period_us": percentiles(in_us(periods(engine.begin_s))),
        "tokens_per_message": round(num_streams * NUM_STEPS / num_messages, 2),
    }


def test_streams_do_not_set_the_pace(record_bench: RecordBench) -> None:
    """step_period_us - 1000 * STEP_MS is what a step loses to streaming and to the GIL."""
    results = [measure(num_streams) for num_streams in STREAMS]
    record_bench("gateway_streams", results, step_ms=STEP_MS, num_steps=NUM_STEPS)


def periods(begin_s: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(begin_s)]


def in_us(seconds: Sequence[float]) -> list[float]:
    return [1e6 * each for each in seconds[NUM_WARM_UP_STEPS:]]
