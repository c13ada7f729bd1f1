"""Sparse latent attention of the published sizes, served on a GPU with scheduling and without."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.engine import EngineStats
from specsched_executor.serve import assembly
from specsched_executor.serve.facts import served_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NUM_REQUESTS, NUM_TOKENS, ROWS = 8, 40, 32
OPTIONS = {
    "device": "cuda",
    "load_format": "dummy",
    "preset": "deepseek-v32-narrow",
    "drafter": "ngram",
    "max_draft_tokens": 3,
    "max_num_seqs": NUM_REQUESTS,
    # All prompts in the first step and one captured size: the same batch shape whatever is decided.
    "max_num_batched_tokens": 32_768,
    "capture_sizes": [ROWS],
    "max_context_tokens": 4096,
    "profile": "off",
    "port": 0,
}


def prompt(index: int) -> tuple[int, ...]:
    """Longer than the 2048 tokens that are attended to; repeats itself, for prompt lookup."""
    generator = torch.Generator().manual_seed(index)
    piece = torch.randint(0, 4096, (37 + index,), generator=generator).tolist()
    return tuple(piece * 60)


def serve(run_dir: Path, **changes) -> tuple[list[list[int]], EngineStats, str]:
    """Tokens of requests that come together, what the engine counted, and the backend's name."""
    config = ExecutorConfig(**(OPTIONS | {"run_dir": run_dir} | changes))
    executor = assembly.build_executor(config)
    tokens: list[list[int]] = [[] for _ in range(NUM_REQUESTS)]
    left = threading.Semaphore(0)

    def sink_of(index: int):
        def sink(delta):
            assert delta.error is None
            tokens[index].extend(delta.token_ids)
            if delta.finish_reason is not None:
                left.release()

        return sink

    try:
        sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        for index in range(NUM_REQUESTS):
            request = GenerationRequest(f"{index}", prompt(index), sampling)
            executor.engine.submit(request, sink_of(index))
        executor.start(on_failure=lambda: left.release(NUM_REQUESTS))
        for _ in range(NUM_REQUESTS):
            assert left.acquire(timeout=120)
        backend = served_model(config, executor.loaded, executor.sizes).attention_backend
        return tokens, executor.engine.stats(), backend
    finally:
        executor.stop()


def test_greedy_tokens_do_not_depend_on_scheduling(tmp_path):
    off, unscheduled, _ = serve(tmp_path / "off", scheduler="off", fallback="fixed(3)")
    assert unscheduled.num_verified_tokens > 0
    for policy in ("threshold(0.05)", "fixed(1)"):
        options = {"scheduler": "in-process", "policy": policy, "profile": "quick"}
        on, stats, backend = serve(tmp_path / policy, **options)
        assert on == off
        assert stats.num_planned_steps > 0
        assert 0 < stats.num_verified_tokens != unscheduled.num_verified_tokens
        assert backend in {"sparse-mla-flattened", "sparse-mla-native", "sparse-mla-generic"}
        print(policy, backend, stats)
