"""What a scheduler adds to a step on the CPU: asking, reading, reporting and allocating.

The real model and drafter, and the in-process transport, which decides on the engine's own thread:
more than an attached scheduler costs there. The parts are timed in CPU time of that thread, which a
busy machine inflates little, and are compared with the fastest tenth of the steps, which it
inflates least.
"""

from __future__ import annotations

import functools
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.drafters import create_drafter
from specsched_executor.engine import EngineConfig, target_pass
from specsched_executor.engine.admission import Admission
from specsched_executor.engine.assembly import build_step_loop
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.engine.delivery import Delivery
from specsched_executor.engine.step_loop import StepLoop
from specsched_executor.model import LoadedModel, LoadOptions, fastest_dtype, load_model
from specsched_executor.transport.in_process import InProcessTransport
from specsched_protocol.v1 import plan_pb2

from tests.bench.recording import percentiles

PROMPTS = Path(__file__).parent / "prompts" / "chat.jsonl"
CONCURRENCY = (1, 4, 16)
MAX_DRAFT_TOKENS = 7
NUM_STEPS = 60
NUM_WARM_UP_STEPS = 12
COST = plan_pb2.CostModel(
    verify=[plan_pb2.VerifyCost(tokens=n, ms=[20.0 + n / 4]) for n in (1, 4, 16, 64, 128)],
    capture_limit=128,
)
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


def make_loop(loaded: LoadedModel, concurrency: int, stopwatch: Stopwatch) -> StepLoop:
    sizes = EngineConfig(num_kv_blocks=16 * 64, max_draft_tokens=MAX_DRAFT_TOKENS)
    transport = InProcessTransport(
        "throughput", COST, max_requests=sizes.max_num_seqs, max_draft_tokens=MAX_DRAFT_TOKENS
    )
    gate = ConfidenceGate(transport, sizes.max_num_seqs * MAX_DRAFT_TOKENS)
    for part in ("read_plan", "publish", "report"):
        setattr(gate, part, stopwatch.timed(part, getattr(gate, part)))
    drafter = create_drafter("ngram", MAX_DRAFT_TOKENS)
    loop = build_step_loop(loaded.model, drafter, gate, sizes, Delivery(lambda _: None))
    admission = Admission(loaded.config, sizes, loaded.tokenizer)
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    for index in range(concurrency):
        prompt = loaded.tokenizer.encode(json.loads(lines[index])["turns"][0])
        sampling = SamplingParams(temperature=1.0, seed=index, max_tokens=400, ignore_eos=True)
        request = GenerationRequest(str(index), tuple(prompt), sampling)
        loop.queue(admission.accept(request, lambda _: None, index))
    return loop


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_what_a_scheduler_adds_to_a_step(
    record_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = fastest_dtype()
    loaded = load_model(options=LoadOptions(dtype=dtype))
    results = []
    allocate = target_pass.allocate_verify_lens
    for concurrency in CONCURRENCY:
        stopwatch = Stopwatch()
        timed = stopwatch.timed("allocate", allocate)
        monkeypatch.setattr(target_pass, "allocate_verify_lens", timed)
        loop = make_loop(loaded, concurrency, stopwatch)
        for _ in range(NUM_WARM_UP_STEPS):
            loop.step()
        stopwatch.samples_us.clear()
        steps_ms = []
        for _ in range(NUM_STEPS):
            started = time.perf_counter()
            loop.step()
            steps_ms.append((time.perf_counter() - started) * 1e3)
        assert loop.stats().num_failed_steps == 0
        results.append(_result(concurrency, steps_ms, stopwatch.samples_us))
    _show(results)
    record_bench("scheduler_share_of_step", results, dtype=str(dtype), drafter="ngram")


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
    table = Table("concurrency", "step p10, ms", *(f"{part}, us" for part in PARTS), "share")
    for each in results:
        medians = [f"{each['parts_us'][part]['p50']:.0f}" for part in PARTS]
        share = f"{each['share_of_fast_step']:.2%}"
        table.add_row(str(each["concurrency"]), f"{each['step_ms']['p10']:.1f}", *medians, share)
    Console(width=110).print(table)
