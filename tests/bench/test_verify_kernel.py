"""Verification and sampling on the device, and the small kernels around attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.triton.rms_norm import rms_norm
from specsched_kernels.triton.rope import rope
from specsched_kernels.triton.write_kv import write_kv
from specsched_kernels.verify_drafts import SamplingInputs, VerifyOutcome, verify_drafts

from tests.bench.conftest import RecordBench
from tests.bench.gpu_timing import replay_us
from tests.bench.recording import percentiles

pytestmark = [
    pytest.mark.bench,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NUM_REQUESTS = 256
MAX_DRAFT_TOKENS = 7
MODES = {
    "greedy": (0.0, 0, 1.0, 0.0),
    "temperature": (0.8, 0, 1.0, 0.0),
    "min_p": (0.8, 0, 1.0, 0.05),
    "top_k": (0.8, 50, 1.0, 0.0),
    "top_p": (0.8, 0, 0.95, 0.0),
    "top_p, flat": (1.5, 0, 0.98, 0.0),
}


def verification(mode: str, vocab: int, *, stochastic: bool) -> Callable[[], None]:
    temperature, top_k, top_p, min_p = MODES[mode]
    r, k, rows = NUM_REQUESTS, MAX_DRAFT_TOKENS, NUM_REQUESTS * (MAX_DRAFT_TOKENS + 1)

    def full(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((r,), value, dtype=dtype, device="cuda")

    distribution = None
    if stochastic:
        logits = torch.randn(r, k, vocab, device="cuda")
        ones = torch.ones(r, k, device="cuda")
        maxima = logits.amax(-1)
        masses = (logits - maxima[..., None]).exp().sum(-1)
        distribution = DraftDistribution(logits, ones, maxima, masses)
    inputs = SamplingInputs(
        logits=torch.randn(rows, vocab, device="cuda") * 3,
        logit_start_loc=torch.arange(0, rows + 1, k + 1, dtype=torch.int32, device="cuda"),
        verify_lens=full(k, torch.int32),
        output_positions=full(100, torch.int64),
        draft_token_ids=torch.randint(0, vocab, (r, k), device="cuda"),
        temperature=full(temperature, torch.float32),
        top_k=full(top_k, torch.int64),
        top_p=full(top_p, torch.float32),
        min_p=full(min_p, torch.float32),
        seeds=torch.arange(r, device="cuda"),
        keeps_own_sample=full(0, torch.bool),
        draft_distribution=distribution,
    )
    out = VerifyOutcome.empty(r, k, "cuda")

    def work() -> None:
        verify_drafts(inputs, out=out)

    return work


def measured(work: Callable[[], None], repeats: int, **case: Any) -> dict[str, Any]:
    return case | {"us": percentiles(replay_us(work, repeats=repeats, num_replays=10))}


def test_verification(record_bench: RecordBench) -> None:
    results = [
        measured(
            verification(mode, vocab, stochastic=stochastic),
            2,
            mode=mode,
            vocab=vocab,
            stochastic=stochastic,
        )
        for vocab in (49_152, 151_936)
        for mode in MODES
        for stochastic in (False, True)
    ]
    record_bench("verify_drafts", results, requests=NUM_REQUESTS, rows_each=MAX_DRAFT_TOKENS + 1)
    for result in results:
        print(result["vocab"], result["mode"], result["stochastic"], result["us"]["p50"])


def test_small_kernels(record_bench: RecordBench) -> None:
    rows, heads, kv_heads, dim, width = 2048, 32, 8, 128, 4096
    dtype = torch.bfloat16
    x, weight = torch.randn(rows, width, dtype=dtype, device="cuda"), torch.ones(width).cuda()
    out = torch.empty_like(x)
    qkv = torch.randn(rows, heads + 2 * kv_heads, dim, dtype=dtype, device="cuda")
    query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
    cos_sin = torch.randn(4096, dim, device="cuda")
    positions = torch.randint(0, 4096, (rows,), device="cuda")
    cache = torch.empty(2, rows // 8, 16, kv_heads, dim, dtype=dtype, device="cuda")
    slots = torch.randperm(rows * 2, device="cuda")[:rows]
    torch_weight = weight.to(dtype)
    results = [
        measured(work, 20, kernel=name, rows=rows)
        for name, work in {
            "rms_norm": lambda: rms_norm(x, weight, 1e-5, out=out),
            "torch rms_norm": lambda: torch.rms_norm(x, (width,), torch_weight, 1e-5),
            "rope": lambda: rope(query, key, positions, cos_sin),
            "write_kv": lambda: write_kv(key, value, cache[0], cache[1], slots),
        }.items()
    ]
    record_bench("row_kernels", results, heads=heads, kv_heads=kv_heads, head_dim=dim, width=width)
    for result in results:
        print(result["kernel"], result["us"]["p50"])
