"""What streaming costs the engine's thread, and how far behind its clients are.

An engine stand-in steps every 3 ms and hands each stream one token per step, the step's number; a
client in another process reads all streams over real gRPC. With the gateway on a thread of the
engine's process, and in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import DeltaSink, GenerationRequest, TokenDelta
from specsched_executor.front_end import FrontEndProcess, FrontEndSetup
from specsched_executor.front_end.outbox import OutboxSink
from specsched_executor.gateway import GatewayConfig
from specsched_executor.gateway.counters_servicer import nobody
from specsched_executor.progress import Progress
from specsched_executor.telemetry import RequestMeter

from tests.bench.conftest import RecordBench
from tests.bench.recording import percentiles
from tests.executor.gateway.fakes import MODEL, FakeEngine, WordTokenizer, serving_in_thread

pytestmark = pytest.mark.bench

STEP_MS = 3.0
NUM_STEPS = 1000
NUM_WARM_UP_STEPS = 200
STREAMS = (1, 16, 64, 256)

READER = """
import asyncio, sys, time
import numpy as np
from specsched_client import AsyncClient

async def read(client):
    return [(delta.token_ids[-1], time.monotonic()) async for delta in client.stream([3])
            if delta.token_ids]

async def main(target, num_streams, path):
    async with AsyncClient(target) as client:
        read_all = await asyncio.gather(*(read(client) for _ in range(num_streams)))
    np.save(path, np.array([seen for stream in read_all for seen in stream]))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
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
        sinks = list(self.sinks.values())
        keys = [sink.key for sink in sinks if isinstance(sink, OutboxSink)]
        numbers = np.zeros((5, len(keys)), dtype=np.int64)
        numbers[0], numbers[2] = keys, 1
        takers = {sink.taker: None for sink in sinks if isinstance(sink, OutboxSink)}
        for step in range(NUM_STEPS):
            # Stands for the device at work: the thread waits without the GIL.
            time.sleep(STEP_MS / 1e3)
            begin = time.monotonic()
            reason = "length" if step == NUM_STEPS - 1 else None
            if reason is None and keys:  # as the engine's Delivery does
                progress = Progress(numbers, np.full(len(keys), step, dtype=np.int32))
                for taker in takers:
                    taker.take(progress, None)
            else:
                for request_id, sink in streams:
                    sink(TokenDelta(request_id, (step,), finish_reason=reason))
            self.begin_s.append(begin)
            self.sinks_s.append(time.monotonic() - begin)


@contextlib.contextmanager
def serving_apart(engine: FakeEngine) -> Iterator[str]:
    """The address of a front end in a process of its own."""
    tokenizer = WordTokenizer()
    setup = FrontEndSetup(
        ExecutorConfig(port=0), GatewayConfig(port=0), MODEL, tokenizer._fast, tokenizer.files()
    )

    async def start() -> FrontEndProcess:
        process = FrontEndProcess(engine, setup, nobody, RequestMeter(), lambda: None)
        await process.start()
        return process

    with asyncio.Runner() as runner:
        process = runner.run(start())
        yield f"127.0.0.1:{process.port}"
        runner.run(process.stop(grace_s=1))


def measure(num_streams: int, *, is_apart: bool, folder: Path) -> dict[str, Any]:
    engine = SteppingEngine(num_streams)
    serving = serving_apart if is_apart else serving_in_thread
    path = folder / "seen.npy"
    with serving(engine) as target:
        subprocess.run(
            [sys.executable, "-c", READER, target, str(num_streams), str(path)], check=True
        )
        engine.thread.join()
    steps, seen_s = np.load(path).T
    begin_s = np.array(engine.begin_s)[steps.astype(int)]
    late_ms = (seen_s - begin_s)[steps >= NUM_WARM_UP_STEPS] * 1e3
    return {
        "num_streams": num_streams,
        "front_end": "process" if is_apart else "thread",
        "sinks_us_per_step": percentiles(in_us(engine.sinks_s)),
        "step_period_us": percentiles(in_us(periods(engine.begin_s))),
        "newest_token_late_ms": percentiles(late_ms),
        "tokens_per_message": round(num_streams * NUM_STEPS / len(steps), 2),
    }


@pytest.mark.parametrize("num_streams", STREAMS)
def test_streams_do_not_set_the_pace(
    num_streams: int, record_bench: RecordBench, tmp_path: Path
) -> None:
    """step_period_us - 1000 * STEP_MS is what a step loses to streaming and to the GIL."""
    results = [
        measure(num_streams, is_apart=is_apart, folder=tmp_path) for is_apart in (False, True)
    ]
    name = f"gateway_streams_{num_streams}"
    record_bench(name, results, step_ms=STEP_MS, num_steps=NUM_STEPS)
    for each in results:
        print(
            {key: value["p50"] if isinstance(value, dict) else value for key, value in each.items()}
        )


def periods(begin_s: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(begin_s)]


def in_us(seconds: Sequence[float]) -> list[float]:
    return [1e6 * each for each in seconds[NUM_WARM_UP_STEPS:]]
