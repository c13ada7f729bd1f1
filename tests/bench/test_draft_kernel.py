"""Drafting on the device: the heads alone, and all that a captured draft runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from specsched_executor.core import PAD_SLOT
from specsched_executor.device.device_step import DeviceStep, DraftShape
from specsched_executor.device.dspark import DeviceDSpark
from specsched_executor.device.step_arrays import DeviceSizes
from specsched_executor.drafters.dspark import DSparkCheckpoint, load_checkpoint
from specsched_executor.drafters.shipped import shipped_checkpoint
from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.draw_drafts import DraftDraws, MarkovBias, draw_drafts

from tests.bench.conftest import RecordBench
from tests.bench.gpu_timing import replay_us
from tests.bench.recording import percentiles
from tests.executor.device.models import SMOLLM2, random_decoder, random_drafter

pytestmark = [
    pytest.mark.bench,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NUM_REQUESTS = (1, 16, 64, 128, 256)
K = 7
BLOCK_SIZE = 16
CONTEXT = 1024
TEMPERATURE = 0.8
SHIPPED_FOR = "Smollm2 135M 8k Lc100K Mix1 Ep2"
"""The name in SmolLM2-135M-Instruct's weights."""


def heads(num_requests: int, vocab: int, rank: int, *, draws: bool) -> Callable[[], object]:
    """One block of drafts from given logits of the output head."""

    def integers(high: int) -> torch.Tensor:
        return torch.randint(0, high, (num_requests,), device="cuda")

    base = torch.randn(num_requests, K, vocab, device="cuda") * 3
    codes, weights = torch.randn(2, vocab, rank, device="cuda", dtype=torch.bfloat16)
    drawing = None
    if draws:
        drawing = DraftDraws(
            temperatures=torch.full((num_requests,), TEMPERATURE, device="cuda"),
            seeds=integers(2**60),
            positions=integers(2000),
            step_id=integers(9)[:1].clone(),
            slot_ids=torch.arange(num_requests, device="cuda"),
            kept=DraftDistribution.empty(num_requests, K, vocab, "cuda"),
        )
    out = torch.empty(num_requests, K, dtype=torch.int64, device="cuda")
    anchors, markov = integers(vocab), MarkovBias(codes, weights)
    return lambda: draw_drafts(base, anchors, markov, drawing, out=out)


def test_heads(record_bench: RecordBench) -> None:
    results: list[dict[str, Any]] = []
    for draws in (False, True):
        for num_requests in NUM_REQUESTS:
            work = heads(num_requests, SMOLLM2.vocab_size, 64, draws=draws)
            times = percentiles(replay_us(work, repeats=4, num_replays=10))
            results.append({"requests": num_requests, "draws": draws, "us": times})
    record_bench("draft_heads", results, vocab=SMOLLM2.vocab_size, markov_rank=64, tokens=K)
    for result in results:
        print(result["requests"], result["draws"], result["us"]["p50"])


class DraftStep:
    """A step of which only the draft is run, of requests that have read CONTEXT tokens."""

    def __init__(self, checkpoint: DSparkCheckpoint, max_requests: int) -> None:
        model = random_decoder(SMOLLM2, "cuda", torch.bfloat16)
        drafter = DeviceDSpark(checkpoint, model, num_slots=max_requests, max_draft_tokens=K)
        sizes = DeviceSizes(max_requests, max_requests, K, CONTEXT // BLOCK_SIZE + 1, BLOCK_SIZE)
        self._step = DeviceStep(model, model.allocate_kv_cache(8, BLOCK_SIZE), drafter, sizes)
        self._step.tables.num_tokens.fill_(CONTEXT)

    def run(self, num_requests: int, *, draws: bool) -> Callable[[], None]:
        """The draft as a graph captures it."""
        arrays = self._step.inputs.arrays
        slots = arrays["slot_ids"]
        slots.fill_(PAD_SLOT)
        slots[:num_requests] = torch.arange(num_requests, device="cuda")
        arrays["next_draft_lens"].fill_(K)
        arrays["draft_temperature"].fill_(TEMPERATURE)
        shape = DraftShape(num_requests, K, draws)
        return lambda: self._step.draft(shape)


def checkpoint_of(kind: str) -> DSparkCheckpoint:
    """Of random weights, as most published ones of Markov rank 256; or the one that ships."""
    if kind == "random":
        return random_drafter(SMOLLM2, K, window=128)
    folder = shipped_checkpoint(replace(SMOLLM2, name=SHIPPED_FOR))
    assert folder is not None
    return load_checkpoint(folder)


@pytest.mark.parametrize("checkpoint", ["random", "shipped"])
def test_whole_draft(record_bench: RecordBench, checkpoint: str) -> None:
    step = DraftStep(checkpoint_of(checkpoint), max(NUM_REQUESTS))
    results: list[dict[str, Any]] = []
    for draws in (False, True):
        for num_requests in NUM_REQUESTS:
            work = step.run(num_requests, draws=draws)
            times = percentiles(replay_us(work, repeats=2, num_replays=10))
            results.append({"requests": num_requests, "draws": draws, "us": times})
    record_bench(f"draft_graph_{checkpoint}", results, tokens=K, context_tokens=CONTEXT)
    for result in results:
        print(checkpoint, result["requests"], result["draws"], result["us"]["p50"])
