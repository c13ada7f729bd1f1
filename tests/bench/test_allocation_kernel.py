"""Verify-length allocation on the device, all outputs in one launch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specsched_kernels import VerifyAllocation, allocate_verify_lens

from tests.bench.conftest import RecordBench
from tests.bench.gpu_timing import replay_us
from tests.bench.recording import percentiles
from tests.kernels._allocation_cases import random_confidence

pytestmark = [
    pytest.mark.bench,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SHAPES = [(256, 7), (1024, 7), (1024, 16)]
KINDS = ("uniform", "ties", "ones", "weighted")


def measure(num_requests: int, k: int, kind: str, share: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    confidence = random_confidence(generator, kind, num_requests, k).cuda()
    weights = torch.rand(num_requests, generator=generator) + 0.5
    budget = torch.tensor(int(num_requests * k * share), dtype=torch.int32, device="cuda")
    padded_rows = num_requests * (k + 1)
    out = VerifyAllocation.empty(num_requests, padded_rows, device="cuda")
    present = torch.full((num_requests,), k, dtype=torch.int32, device="cuda")
    slots = torch.randperm(num_requests, generator=generator).cuda()
    arguments = {
        "prior": torch.full((k,), 0.5, device="cuda"),
        "start_positions": torch.arange(num_requests, device="cuda"),
        "padded_rows": padded_rows,
        "slot_ids": slots,
        "num_base_rows": torch.ones(num_requests, dtype=torch.int32, device="cuda"),
        "samples": torch.ones(num_requests, dtype=torch.bool, device="cuda"),
        "out": out,
    }
    weights = (weights if kind == "weighted" else torch.ones(num_requests)).cuda()

    def work() -> None:
        allocate_verify_lens(confidence, present, weights, budget, **arguments)

    return {
        "num_requests": num_requests,
        "max_draft_tokens": k,
        "confidence": kind,
        "budget_share": share,
        "chained_us": percentiles(replay_us(work, repeats=20)),
        "single_us": percentiles(replay_us(work, repeats=1)),
    }


def test_allocation(record_bench: RecordBench) -> None:
    """chained: per launch, 20 in a graph; single: a graph of one launch, its start included."""
    results = [
        measure(num_requests, k, kind, share)
        for num_requests, k in SHAPES
        for kind in KINDS
        for share in (0.25, 0.5, 1.0)
    ]
    record_bench("allocate_verify_lens", results, unit="microseconds of graph replay")
    for result in results:
        print(
            f"{result['num_requests']:5} x {result['max_draft_tokens']:2} "
            f"{result['confidence']:>8} {result['budget_share']:4} "
            f"{result['chained_us']['p50']:6.2f} us chained "
            f"{result['single_us']['p50']:6.2f} us single"
        )
