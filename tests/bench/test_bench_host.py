"""What a scheduler adds to a step on the CPU: asking, reading, reporting and allocating.

The real model, the drafter `ngram` and an executor attached over shared memory to a scheduler in a
process of its own. The parts are timed in CPU time of the engine's thread, which a busy machine
inflates little, and are compared with the fastest tenth of the steps, which it inflates least.

The other process takes its share of the same cores. So blocks of steps with it alternate with such
in which it is stopped (SIGSTOP) and the executor holds on to the last plan, which is a fixed one:
`step_ratio` is that of their median step times, all costs of a scheduler but those parts included.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import GenerationRequest, SamplingParams, TokenDelta
from specsched_executor.engine import target_pass
from specsched_executor.engine.counters import EngineStats
from specsched_executor.serve.assembly import Executor, build_executor
from specsched_executor.transport.shared_memory import SharedMemoryTransport

from tests.bench.recording import percentiles
from tests.integration.processes import ManagedProcess, start_scheduler

PROMPTS = Path(__file__).parent / "prompts" / "code.jsonl"
CONCURRENCY = (1, 4, 16)
MAX_DRAFT_TOKENS = 7
NUM_BLOCKS = 12
NUM_STEPS = 12
"""Of a block."""
NUM_WARM_UP_STEPS = 12
PARTS = ("read_plan", "publish", "report", "allocate")


class Stopwatch:
    """CPU time of the calling thread by part, in microseconds."""

    def __init__(self) -> None:
        self.samples_us: dict[str, list[float]] = defaultdict(list)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.samples_us[part].append((time.thread_time_ns() - started) / 1e3)

        return run


class DrivenEngine:
    """The engine of an executor that is attached to a scheduler process, a step at a time."""

    def __init__(self, executor: Executor, stopwatch: Stopwatch) -> None:
        self._engine = executor.engine
        self._loop = executor.engine._loop
        self._tokenizer = executor.loaded.tokenizer
        gate = self._loop._gate
        for part in ("read_plan", "publish", "report"):
            setattr(gate, part, stopwatch.timed(part, getattr(gate, part)))

    def submit(self, concurrency: int) -> None:
        """One endless request per stream."""
        lines = PROMPTS.read_text(encoding="utf-8").splitlines()
        for index in range(concurrency):
            prompt = self._tokenizer.encode(json.loads(lines[index % len(lines)])["turns"][0])
            sampling = SamplingParams(temperature=1.0, seed=index, max_tokens=400, ignore_eos=True)
            self._engine.submit(GenerationRequest(str(index), tuple(prompt), sampling), _ignore)
        self._engine._take_orders()

    def abort(self, concurrency: int) -> None:
        """End them again."""
        for index in range(concurrency):
            self._engine.abort(str(index))
        self._engine._take_orders()

    def steps_ms(self, num_steps: int) -> list[float]:
        """Run steps; the time of each."""
        return [self._step_ms() for _ in range(num_steps)]

    def _step_ms(self) -> float:
        started = time.perf_counter()
        self._loop.step()
        return (time.perf_counter() - started) * 1e3

    def stats(self) -> EngineStats:
        """Counts so far."""
        return self._loop.stats()


def _ignore(_: TokenDelta) -> None:
    """Nobody reads what is generated."""


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[ManagedProcess]:
    with start_scheduler(tmp_path / "run", policy="fixed(1)") as process:
        yield process


@pytest.fixture
def executor(tmp_path: Path, scheduler: ManagedProcess) -> Iterator[Executor]:
    built = build_executor(
        ExecutorConfig(
            run_dir=tmp_path / "run",
            drafter="ngram",
            max_draft_tokens=MAX_DRAFT_TOKENS,
            failover_after_ms=60_000,
            port=0,
        )
    )
    assert built.attacher is not None
    built.attacher.start()
    while not built.attacher.attachments():
        assert scheduler.popen.poll() is None, scheduler.log
        time.sleep(0.05)
    yield built
    built.stop()


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_what_a_scheduler_adds_to_a_step(
    record_bench: Any,
    monkeypatch: pytest.MonkeyPatch,
    scheduler: ManagedProcess,
    executor: Executor,
) -> None:
    stopwatch = Stopwatch()
    timed = stopwatch.timed("allocate", target_pass.allocate_verify_lens)
    monkeypatch.setattr(target_pass, "allocate_verify_lens", timed)
    engine = DrivenEngine(executor, stopwatch)
    results = []
    for concurrency in CONCURRENCY:
        engine.submit(concurrency)
        engine.steps_ms(NUM_WARM_UP_STEPS)
        stopwatch.samples_us.clear()
        before_ms, num_before = _cpu_ms(scheduler.pid), _num_plans(executor)
        with_it, without = _alternating(engine, scheduler)
        scheduler_ms = (_cpu_ms(scheduler.pid) - before_ms) / len(with_it + without)
        assert _num_plans(executor) > num_before
        engine.abort(concurrency)
        told = {"step_ratio": float(np.median(with_it) / np.median(without))}
        told |= {"scheduler_cpu_ms_per_step": scheduler_ms}
        results.append(_result(concurrency, with_it, stopwatch.samples_us) | told)
    assert engine.stats().num_failed_steps == 0
    _show(results)
    record_bench(
        "scheduler_share_of_step", results, dtype=str(executor.loaded.dtype), drafter="ngram"
    )


def _alternating(
    engine: DrivenEngine, scheduler: ManagedProcess
) -> tuple[list[float], list[float]]:
    """Times of steps (with the scheduler, while it is stopped), in blocks that take turns."""
    with_it, without = [], []
    for _ in range(NUM_BLOCKS):
        with_it += engine.steps_ms(NUM_STEPS)
        os.kill(scheduler.pid, signal.SIGSTOP)
        try:
            without += engine.steps_ms(NUM_STEPS)
        finally:
            os.kill(scheduler.pid, signal.SIGCONT)
    return with_it, without


def _num_plans(executor: Executor) -> int:
    assert isinstance(executor.transport, SharedMemoryTransport)
    return executor.transport.counters().num_plans_on_time


def _cpu_ms(pid: int) -> float:
    """User and system time of a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")


def _result(
    concurrency: int, steps_ms: list[float], samples_us: dict[str, list[float]]
) -> dict[str, Any]:
    added_us = sum(float(np.median(samples_us[part])) for part in PARTS)
    step_ms = percentiles(steps_ms)
    return {
        "concurrency": concurrency,
        "step_ms": step_ms,
        "parts_us": {part: percentiles(samples_us[part]) for part in PARTS},
        "added_us": added_us,
        "share_of_fast_step": added_us / 1e3 / step_ms["p10"],
    }


def _show(results: list[dict[str, Any]]) -> None:
    parts = (f"{part}, us" for part in PARTS)
    table = Table("concurrency", "step p10, ms", *parts, "share", "step ratio", "scheduler, ms")
    for each in results:
        table.add_row(
            str(each["concurrency"]),
            f"{each['step_ms']['p10']:.1f}",
            *(f"{each['parts_us'][part]['p50']:.0f}" for part in PARTS),
            f"{each['share_of_fast_step']:.2%}",
            f"{each['step_ratio']:.3f}",
            f"{each['scheduler_cpu_ms_per_step']:.2f}",
        )
    Console(width=110).print(table)
