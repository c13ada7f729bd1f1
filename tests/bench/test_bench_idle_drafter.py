"""What a drafter adds to the steps of an engine that drafts nothing: CPU time of all its threads.

One process has engines of one model in turns, some steps each: without a drafter, without one once
more, which tells the noise, and with the trained one, whose features are kept for a draft that is
never asked for. All serve the same requests, so that their steps are alike.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import GenerationRequest, SamplingParams, TokenDelta
from specsched_executor.engine import Engine
from specsched_executor.model import LoadedModel, load_model
from specsched_executor.serve.drafter import build_drafter, choose_drafter
from specsched_executor.serve.sizes import engine_config
from specsched_executor.transport.none import NoTransport

from tests.bench.conftest import RecordBench
from tests.bench.recording import percentiles

PROMPTS = Path(__file__).parent / "prompts" / "code.jsonl"
NUM_REQUESTS = 16
NUM_BLOCKS, NUM_STEPS = 20, 16
NUM_WARM_UP_STEPS = 20
ENGINES = {"none": "none", "none once more": "none", "trained": "dspark"}


def make_engine(loaded: LoadedModel, drafter: str) -> Engine:
    options = ExecutorConfig(drafter=drafter, max_context_tokens=2048, fallback="off")
    options = choose_drafter(options, loaded.config)
    sizes = engine_config(options, loaded.config)
    engine = Engine(loaded.model, build_drafter(options, loaded, sizes), NoTransport(), sizes)
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    for index in range(NUM_REQUESTS):
        prompt = loaded.tokenizer.encode(json.loads(lines[index % len(lines)])["turns"][0])
        sampling = SamplingParams(temperature=1.0, seed=index, max_tokens=1500, ignore_eos=True)
        engine.submit(GenerationRequest(str(index), tuple(prompt), sampling), _ignore)
    engine._take_orders()
    return engine


def _ignore(_: TokenDelta) -> None:
    """Nobody reads what is generated."""


def steps_ms(engine: Engine, num_steps: int) -> list[float]:
    """CPU time of each step."""
    samples = []
    for _ in range(num_steps):
        started = time.process_time()
        engine._loop.step()
        engine._take_snapshot()
        samples.append((time.process_time() - started) * 1e3)
    return samples


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_what_a_drafter_adds_that_drafts_nothing(record_bench: RecordBench) -> None:
    torch.set_num_threads(2)
    loaded = load_model()
    engines = {name: make_engine(loaded, drafter) for name, drafter in ENGINES.items()}
    for engine in engines.values():
        steps_ms(engine, NUM_WARM_UP_STEPS)
    blocks: dict[str, list[list[float]]] = {name: [] for name in engines}
    for number in range(NUM_BLOCKS):
        for name in list(engines)[:: -1 if number % 2 else 1]:
            steps_ms(engines[name], 2)  # the caches are its own again
            blocks[name].append(steps_ms(engines[name], NUM_STEPS))
    means = {name: np.mean(each, axis=1) for name, each in blocks.items()}
    results = []
    for name, engine in engines.items():
        assert engine.stats().num_running_requests == NUM_REQUESTS
        assert engine.stats().num_drafted_tokens == 0
        ratios = means[name] / means["none"]
        ratio = {"mean": float(ratios.mean()), "error": float(ratios.std() / NUM_BLOCKS**0.5)}
        cpu_ms = percentiles(np.concatenate(blocks[name]).tolist())
        results.append({"drafter": name, "step_cpu_ms": cpu_ms, "to_none": ratio})
        print(name, f"{cpu_ms['p50']:.2f} ms, {ratio['mean']:.3f} +- {ratio['error']:.3f}")
        engine.stop()
    record_bench("idle_drafter", results, num_requests=NUM_REQUESTS, num_steps=NUM_STEPS)
