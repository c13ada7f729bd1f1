"""What a verification step and a draft cost on a GPU, by rows: the stairs that schedulers see.

Decoders of random weights in bfloat16, captured as CUDA graphs: their time does not depend on what
the weights are. Attention is this project's ragged kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.bench.conftest import RecordBench
from tests.bench.gpu_timing import replay_us
from tests.bench.recording import percentiles

pytestmark = [
    pytest.mark.bench,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

BLOCK_SIZE = 16
CONTEXT = 1024
NUM_DRAFT_LAYERS = 3
MAX_DRAFT_TOKENS = 7
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
SIZES += (640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560)


@dataclass(frozen=True)
class Decoder:
    name: str
    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int


DECODERS = [
    Decoder("smollm2-135m", 30, 576, 1536, 9, 3, 64, 49152),
    Decoder("8b", 36, 4096, 12288, 32, 8, 128, 151936),
]


class Stack:
    """`num_layers` layers and the head over a cache of their own."""

    def __init__(self, decoder: Decoder, num_layers: int, max_requests: int) -> None:
        def weights(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * shape[-1] ** -0.5

        self.decoder = decoder
        heads = (decoder.num_heads + 2 * decoder.num_kv_heads) * decoder.head_dim
        inner = decoder.num_heads * decoder.head_dim
        self.layers = [
            (
                weights(heads, decoder.hidden),
                weights(decoder.hidden, inner),
                weights(2 * decoder.intermediate, decoder.hidden),
                weights(decoder.hidden, decoder.intermediate),
            )
            for _ in range(num_layers)
        ]
        self.norm = torch.ones(decoder.hidden, device="cuda", dtype=torch.bfloat16)
        self.head = weights(decoder.vocab, decoder.hidden)
        blocks = max_requests * (CONTEXT // BLOCK_SIZE)
        cache = (num_layers, 2, blocks, BLOCK_SIZE, decoder.num_kv_heads, decoder.head_dim)
        self.caches = torch.zeros(cache, device="cuda", dtype=torch.bfloat16)

    def forward(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        decoder = self.decoder
        for (qkv, output, gate_up, down), cache in zip(self.layers, self.caches, strict=True):
            normed = functional.rms_norm(rows, (decoder.hidden,), self.norm)
            rows = rows + batch.attend(normed @ qkv.T, cache, decoder) @ output.T
            normed = functional.rms_norm(rows, (decoder.hidden,), self.norm)
            gate, up = (normed @ gate_up.T).chunk(2, dim=-1)
            rows = rows + (functional.silu(gate) * up) @ down.T
        return (functional.rms_norm(rows, (decoder.hidden,), self.norm) @ self.head.T).argmax(-1)


class Batch:
    """Rows spread evenly over requests that have all read CONTEXT tokens."""

    def __init__(self, num_rows: int, num_requests: int) -> None:
        lens = torch.full((num_requests,), num_rows // num_requests)
        lens[: num_rows - int(lens.sum())] += 1
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), lens.cumsum(0)])
        blocks = CONTEXT // BLOCK_SIZE
        self.max_query_len = int(lens.max())
        self.starts = starts.to(torch.int32).cuda()
        self.tables = torch.arange(num_requests * blocks).view(num_requests, -1).int().cuda()
        self.contexts = torch.full((num_requests,), CONTEXT).cuda()

    def attend(self, projected: torch.Tensor, cache: torch.Tensor, decoder: Decoder) -> Any:
        from specsched_kernels.triton.paged_attention import paged_attention

        heads = projected.view(projected.shape[0], -1, decoder.head_dim)
        query = heads[:, : decoder.num_heads].contiguous()
        out = torch.empty_like(query)
        paged_attention(
            query,
            cache[0],
            cache[1],
            out,
            block_tables=self.tables,
            query_start_loc=self.starts,
            context_lens=self.contexts,
            scale=decoder.head_dim**-0.5,
            max_query_len=self.max_query_len,
            max_context_tokens=CONTEXT,
        )
        return out.flatten(1)


def sample(stack: Stack, num_rows: int, num_requests: int, num_passes: int = 1) -> dict[str, float]:
    batch = Batch(num_rows, num_requests)
    rows = torch.randn(num_rows, stack.decoder.hidden, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        for _ in range(num_passes):
            stack.forward(rows, batch)

    times_us = percentiles(replay_us(run, repeats=1, num_replays=20))
    return {key: value if key == "num_samples" else value / 1e3 for key, value in times_us.items()}


def measure(decoder: Decoder, sizes: Sequence[int], max_requests: int) -> list[dict[str, Any]]:
    target = Stack(decoder, decoder.num_layers, max_requests)
    shapes = [("verify", size, min(max_requests, -(-size // 4))) for size in sizes]
    shapes += [("context", 256, num_requests) for num_requests in (64, 128, 256)]
    results: list[dict[str, Any]] = [
        {
            "decoder": decoder.name,
            "kind": kind,
            "rows": num_rows,
            "requests": num_requests,
            "ms": sample(target, num_rows, num_requests),
        }
        for kind, num_rows, num_requests in shapes
    ]
    del target
    drafter = Stack(decoder, NUM_DRAFT_LAYERS, max_requests)
    for num_requests in (1, 16, 64, 128, 256):
        for length in (1, 2, 4, MAX_DRAFT_TOKENS):
            ms = sample(drafter, num_requests, num_requests, num_passes=length)
            results.append(
                {
                    "decoder": decoder.name,
                    "kind": "draft",
                    "requests": num_requests,
                    "draft_tokens": length,
                    "ms": ms,
                }
            )
    return results


def test_step_cost(record_bench: RecordBench) -> None:
    results = []
    for decoder in DECODERS:
        results += measure(decoder, SIZES, max_requests=256)
        torch.cuda.empty_cache()
    record_bench(
        "step_cost",
        results,
        dtype="bfloat16",
        context_tokens=CONTEXT,
        num_draft_layers=NUM_DRAFT_LAYERS,
        decoders=[asdict(decoder) for decoder in DECODERS],
    )
    for result in results:
        print({key: value for key, value in result.items() if key != "ms"}, result["ms"]["p50"])
