"""What streaming costs the engine's thread, and how far behind its clients are.

An engine stand-in steps every 3 ms and hands each stream one token per step, the step's number;
clients in other processes read the streams over real gRPC, each over one connection. With the
gateway on a thread of the engine's process, in a process of its own, and in several.
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
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from specsched_executor.batched_sink import BatchedSink
from specsched_executor.core import DeltaSink, GenerationRequest, TokenDelta
from specsched_executor.engine.delivery import Delivery
from specsched_executor.front_end import FrontEnds
from specsched_executor.progress import Progress

from tests.bench.conftest import RecordBench
from tests.bench.recording import percentiles
from tests.executor.front_end.site import Site
from tests.executor.gateway.fakes import FakeEngine, serving_in_thread, tell

pytestmark = pytest.mark.bench

STEP_MS = 3.0
NUM_STEPS = 1000
NUM_WARM_UP_STEPS = 200
STREAMS = (1, 16, 64, 256)

READER = """
import asyncio, sys, time
import grpc.aio
import numpy as np
from smg_grpc_proto import vllm_engine_pb2 as pb

# Replies are parsed at the end: what they cost here must not pass for what they cost there.
async def read(channel, seen):
    generate = channel.unary_stream(
        "/vllm.grpc.engine.VllmEngine/Generate",
        request_serializer=pb.GenerateRequest.SerializeToString,
    )
    request = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[3]), stream=True)
    async for reply in generate(request):
        seen.append((reply, time.monotonic()))

async def main(target, num_streams, path):
    seen = []
    async with grpc.aio.insecure_channel(target) as channel:
        await asyncio.gather(*(read(channel, seen) for _ in range(num_streams)))
    chunks = [(pb.GenerateResponse.FromString(reply).chunk, at) for reply, at in seen]
    np.save(path, np.array([(chunk.token_ids[-1], at) for chunk, at in chunks if chunk.token_ids]))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
"""


@dataclass(frozen=True)
class Arm:
    """num_processes: front ends of their own; 0: a thread of the engine's process."""

    num_processes: int
    num_connections: int = 1


ARMS = (Arm(0), Arm(1), Arm(4, num_connections=16), Arm(8, num_connections=32))


class SteppingEngine(FakeEngine):
    """Steps once all streams are there. Per step: when it began, and how long its sinks took."""

    def __init__(self, num_streams: int) -> None:
        super().__init__()
        self._num_streams = num_streams
        self._lock = threading.Lock()
        self.begin_s: list[float] = []
        self.sinks_s: list[float] = []
        self.thread = threading.Thread(target=self._run)

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        with self._lock:  # every front end has a thread of its own here
            super().submit(request, sink)
            if len(self.sinks) == self._num_streams:
                self.thread.start()

    def _run(self) -> None:
        delivery, batched = Delivery(lambda request: None), []
        for sink in self.sinks.values():
            if isinstance(sink, BatchedSink):
                batched.append(SimpleNamespace(batched_sink=sink, taker=None))
                delivery.enrol(batched[-1])  # type: ignore[arg-type]
        batched.sort(key=lambda each: each.taker)
        takers = np.array([each.taker for each in batched], dtype=np.int64)
        progress = Progress.empty(len(batched), len(batched))
        progress.numbers[:] = 0
        progress.numbers[0], progress.numbers[2] = [each.batched_sink.key for each in batched], 1
        for step in range(NUM_STEPS):
            # Stands for the device at work: the thread waits without the GIL.
            time.sleep(STEP_MS / 1e3)
            begin = time.monotonic()
            if batched and step < NUM_STEPS - 1:
                token_ids = np.full_like(progress.token_ids, step)
                delivery.send_all(Progress(progress.numbers, token_ids), takers)
            else:
                reason = "length" if step == NUM_STEPS - 1 else None
                for request_id, sink in self.sinks.items():
                    tell(sink, TokenDelta(request_id, (step,), finish_reason=reason))
            self.begin_s.append(begin)
            self.sinks_s.append(time.monotonic() - begin)


@contextlib.contextmanager
def serving_apart(engine: FakeEngine, num_processes: int) -> Iterator[str]:
    """The address of front ends in processes of their own."""

    async def start() -> FrontEnds:
        front_ends = Site(engine).several(num_processes)
        await front_ends.start()
        return front_ends

    with asyncio.Runner() as runner:
        front_ends = runner.run(start())
        yield f"127.0.0.1:{front_ends.port}"
        runner.run(front_ends.stop(grace_s=1))


def measure(num_streams: int, arm: Arm, folder: Path) -> dict[str, Any]:
    engine = SteppingEngine(num_streams)
    serving = serving_apart(engine, arm.num_processes) if arm.num_processes else None
    readers = min(arm.num_connections, num_streams)
    paths = [folder / f"seen{index}.npy" for index in range(readers)]
    with serving or serving_in_thread(engine) as target:
        running = [
            subprocess.Popen(
                [sys.executable, "-c", READER, target, str(num_streams // readers), str(path)]
            )
            for path in paths
        ]
        assert [process.wait() for process in running] == [0] * readers
        engine.thread.join()
    steps, seen_s = np.concatenate([np.load(path) for path in paths]).T
    begin_s = np.array(engine.begin_s)[steps.astype(int)]
    late_ms = (seen_s - begin_s)[steps >= NUM_WARM_UP_STEPS] * 1e3
    return {
        "num_streams": num_streams,
        "num_front_end_processes": arm.num_processes,
        "num_connections": readers,
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
    results = [measure(num_streams, arm, tmp_path) for arm in ARMS]
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
