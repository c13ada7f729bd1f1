"""Sparse latent attention on a device, with scheduling and without: the same greedy tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.device.device_step import StepShape
from specsched_executor.engine import EngineStats
from specsched_executor.model import LoadOptions, load_model
from specsched_executor.serve import assembly

NUM_REQUESTS, NUM_TOKENS, ROWS, MAX_DRAFT_TOKENS = 8, 48, 32, 3
LAYOUTS = {"sparse-mla-flattened", "sparse-mla-native", "sparse-mla-generic"}
POLICIES = ("fixed(1)", "fixed(2)", "threshold(0.2)")
OPTIONS = {
    "load_format": "dummy",
    "drafter": "ngram",
    "max_draft_tokens": MAX_DRAFT_TOKENS,
    "max_num_seqs": NUM_REQUESTS,
    # All prompts in the first step and one captured size: the same batch shape whatever is decided.
    "capture_sizes": [ROWS],
    "profile": "off",
    "port": 0,
}


@dataclass(frozen=True)
class Setting:
    """A preset, and prompts of a few repeated pieces that are longer than what is attended to."""

    options: dict[str, object]
    piece_tokens: int
    num_pieces: int

    def prompt(self, index: int) -> tuple[int, ...]:
        generator = torch.Generator().manual_seed(index)
        piece = torch.randint(0, 256, (self.piece_tokens + index,), generator=generator)
        return tuple(piece.tolist() * self.num_pieces)


PUBLISHED_SIZES = Setting(
    {
        "preset": "deepseek-v32-narrow",
        "device": "cuda",
        "max_num_batched_tokens": 32_768,
        "max_context_tokens": 4096,
    },
    piece_tokens=37,
    num_pieces=60,
)
TINY = Setting(
    {
        "preset": "tiny",
        "device": "auto",
        "max_num_batched_tokens": 512,
        "max_context_tokens": 256,
    },
    piece_tokens=5,
    num_pieces=7,
)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Setting:
    """What runs on a device, on a device that is the CPU."""
    loaded = load_model(options=LoadOptions(max_context_tokens=256, is_dummy=True, preset="tiny"))

    def choose(config: ExecutorConfig) -> ExecutorConfig:
        return config.model_copy(update={"device": "cuda"})

    monkeypatch.setattr(assembly, "choose_device", choose)
    monkeypatch.setattr(assembly, "_load", lambda config: loaded)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 31))
    return TINY


@pytest.fixture(
    params=[
        pytest.param("on_the_cpu", marks=pytest.mark.slow, id="cpu"),
        pytest.param(
            "on_a_gpu",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
            ],
            id="gpu",
        ),
    ]
)
def setting(request: pytest.FixtureRequest) -> Setting:
    if request.param == "on_a_gpu":
        return PUBLISHED_SIZES
    found: Setting = request.getfixturevalue(request.param)
    return found


@dataclass(frozen=True)
class Served:
    """What came of requests that came together. num_eager: steps without prompts in no graph."""

    tokens: list[list[int]]
    stats: EngineStats
    backend: str
    num_replays: int
    num_eager: int


def serve(setting: Setting, run_dir: Path, **changes: object) -> Served:
    config = ExecutorConfig(**(OPTIONS | setting.options | {"run_dir": run_dir} | changes))
    executor = assembly.build_executor(config)
    graphs = executor.engine._loop._runner._graphs
    graphs.num_replays.clear()
    graphs.num_eager.clear()  # what was profiled beyond the captured size
    tokens: list[list[int]] = [[] for _ in range(NUM_REQUESTS)]
    left = threading.Semaphore(0)

    def sink_of(index: int) -> Callable[..., None]:
        def sink(delta):
            assert delta.error is None
            tokens[index].extend(delta.token_ids)
            if delta.finish_reason is not None:
                left.release()

        return sink

    try:
        sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        for index in range(NUM_REQUESTS):
            request = GenerationRequest(f"{index}", setting.prompt(index), sampling)
            executor.engine.submit(request, sink_of(index))
        executor.start(on_failure=lambda: left.release(NUM_REQUESTS))
        for _ in range(NUM_REQUESTS):
            assert left.acquire(timeout=240)
    finally:
        executor.stop()
    eager = [shape for shape in graphs.num_eager if isinstance(shape, StepShape)]
    return Served(
        tokens,
        executor.engine.stats(),
        executor.loaded.model.attention_plan.name,
        graphs.num_replays.total(),
        sum(graphs.num_eager[shape] for shape in eager if not shape.has_prompts),
    )


def acceptance(stats: EngineStats) -> float:
    """Of the drafts that were verified."""
    return stats.num_accepted_tokens / max(stats.num_verified_tokens, 1)


def test_greedy_tokens_do_not_depend_on_scheduling(tmp_path, setting):
    nothing = serve(setting, tmp_path / "nothing", scheduler="off", fallback="off")
    whole = serve(setting, tmp_path / "all", scheduler="off", fallback=f"fixed({MAX_DRAFT_TOKENS})")
    assert nothing.stats.num_verified_tokens == 0
    assert whole.stats.num_verified_tokens == whole.stats.num_drafted_tokens
    assert 0 < whole.stats.num_accepted_tokens < whole.stats.num_verified_tokens
    assert whole.tokens == nothing.tokens
    for policy in POLICIES:
        options = {"scheduler": "in-process", "policy": policy, "profile": "quick"}
        some = serve(setting, tmp_path / policy, **options)
        print(policy, some.backend, some.stats)
        assert some.tokens == nothing.tokens
        assert some.backend in LAYOUTS
        assert some.stats.num_planned_steps > 0
        assert not some.stats.num_fallback_steps
        # About as good as those without a scheduler: the same drafts of the same histories.
        assert acceptance(some.stats) > acceptance(whole.stats) / 2
        # Where the policy decided, others than all or none were verified.
        assert some.stats.num_verified_tokens != whole.stats.num_verified_tokens
        assert some.num_replays > 0
        assert some.num_eager == 0
