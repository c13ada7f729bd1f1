"""What the host does for a step of the pipelined loop: CPU time of its thread, by requests.

The device computes nothing, the shared memory is there and published to, new tokens go nowhere.
Where requests come and go, tokens go to another process, which sends the requests.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.engine import Engine, EngineConfig
from specsched_executor.garbage import keep_what_is_there
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.logs import logs_on_stderr
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape

from tests.bench.conftest import RecordBench
from tests.bench.idle_device import idle_parts
from tests.bench.recording import percentiles
from tests.bench.turnover import DEVICE_MS, NUM_FRONT_ENDS, turnover_us
from tests.bench.unread import Unread

pytestmark = pytest.mark.bench

CONCURRENCY = (1, 64, 256)
MAX_DRAFT_TOKENS = 7
NUM_STEPS = 300
NUM_WARM_UP_STEPS = 50


CONFIG = EngineConfig(
    num_kv_blocks=256 * 128,
    max_num_seqs=256,
    max_num_batched_tokens=4096,
    max_draft_tokens=MAX_DRAFT_TOKENS,
    max_context_tokens=2048,
    block_size=16,
)


TURNOVER_CONFIG = replace(CONFIG, max_num_batched_tokens=2048)
"""Steps of prompts are captured up to so many rows."""
ANSWERS = (
    *((False, num_tokens) for num_tokens in (1900, 128, 64)),
    *((True, num_tokens) for num_tokens in (1900, 256, 128)),
)
"""Drafts, tokens of an answer: hardly any request comes in a step, about two, about four."""


def steps_us(run_dir: Path, concurrency: int, *, drafts: bool) -> list[float]:
    """CPU time of each step of `concurrency` requests that all decode."""
    parts = idle_parts(CONFIG, drafts=drafts)
    shape = RegionShape(CONFIG.max_num_seqs, MAX_DRAFT_TOKENS)
    transport = SharedMemoryTransport(RunDir.open(run_dir), shape)
    engine = Engine(parts.step._model, parts.step.drafter, transport, CONFIG, device=parts)
    unread = Unread()
    for index in range(concurrency):
        sampling = SamplingParams(temperature=0.0, max_tokens=1900, seed=index)
        engine.submit(GenerationRequest(str(index), (1,) * 8, sampling), unread)
    engine._take_orders()
    keep_what_is_there()
    samples = []
    for _ in range(NUM_WARM_UP_STEPS + NUM_STEPS):
        started = time.thread_time_ns()
        engine._loop.step()
        engine._take_snapshot()
        samples.append((time.thread_time_ns() - started) / 1e3)
    stats = engine.stats()
    assert stats.num_failed_steps == 0
    assert stats.num_running_requests == concurrency
    assert (stats.num_accepted_tokens > 0) == drafts
    engine.stop()
    transport.close()
    return samples[NUM_WARM_UP_STEPS:]


def test_host_share_of_a_step(record_bench: RecordBench, tmp_path: Path) -> None:
    torch.set_num_threads(1)  # what stands for copies to a device gains nothing from threads
    results: list[dict[str, Any]] = []
    for drafts in (False, True):
        for concurrency in CONCURRENCY:
            with logs_on_stderr():  # a line per step is no part of it
                samples = steps_us(tmp_path / "run", concurrency, drafts=drafts)
            results.append({"num_requests": concurrency, "drafts": drafts, **percentiles(samples)})
            print(concurrency, drafts, f"{np.median(samples):.0f} us")
    record_bench("host_loop", results, max_draft_tokens=MAX_DRAFT_TOKENS)


def test_requests_that_come_and_go(record_bench: RecordBench, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    for drafts, num_tokens in ANSWERS:
        with logs_on_stderr():
            result = turnover_us(
                tmp_path / "run", TURNOVER_CONFIG, max(CONCURRENCY), num_tokens, drafts=drafts
            )
        results.append(result)
        for key, each in result.items():
            print(key, each["p50"] if isinstance(each, dict) else each, end=" ")
        print()
    record_bench(
        "host_turnover",
        results,
        max_draft_tokens=MAX_DRAFT_TOKENS,
        num_front_ends=NUM_FRONT_ENDS,
        device_ms=DEVICE_MS,
    )
