"""Paged ragged attention against torch's own attention on the same, gathered, uniform batch."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from specsched_kernels.triton.attention_order import attention_order
from specsched_kernels.triton.paged_attention import paged_attention
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.bench.conftest import RecordBench
from tests.bench.gpu_timing import replay_us
from tests.bench.recording import percentiles

pytestmark = [
    pytest.mark.bench,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

BLOCK_SIZE = 16
OFF_THE_GRID = (-53, -21, 11, 63)
"""Added to a context: even batches rarely end at a multiple of a tile. Sums to 0."""


@dataclass(frozen=True)
class Shape:
    num_requests: int
    query_len: int
    context: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def kv_bytes(self) -> int:
        return self.num_requests * self.context * self.num_kv_heads * self.head_dim * 2 * 2


SHAPES = [
    Shape(256, 8, 1024, 32, 8, 128),
    Shape(256, 1, 1024, 32, 8, 128),
    Shape(64, 8, 4096, 32, 8, 128),
    Shape(1, 8, 16384, 32, 8, 128),
    Shape(8, 4, 4096, 32, 8, 128),
    Shape(256, 8, 1024, 9, 3, 64),
]


class PagedBatch:
    """A batch in shuffled pages with the given lengths; `bound` caps any context, as in a graph."""

    def __init__(
        self, shape: Shape, query_lens: torch.Tensor, contexts: torch.Tensor, bound: int
    ) -> None:
        blocks = (contexts + BLOCK_SIZE - 1) // BLOCK_SIZE
        order = torch.randperm(int(blocks.sum())).to(torch.int32)
        self.tables = torch.zeros(len(contexts), -(-bound // BLOCK_SIZE), dtype=torch.int32)
        start = 0
        for request, count in enumerate(blocks.tolist()):
            self.tables[request, :count] = order[start : start + count]
            start += count
        self.tables = self.tables.cuda()
        self.bound = bound
        self.max_query_len = int(query_lens.max())
        cache = (2, len(order), BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
        self.cache = torch.randn(cache, device="cuda", dtype=torch.bfloat16)
        rows = int(query_lens.sum())
        self.query = torch.randn(
            rows, shape.num_heads, shape.head_dim, device="cuda", dtype=torch.bfloat16
        )
        self.out = torch.empty_like(self.query)
        zero = torch.zeros(1, dtype=torch.int64)
        self.query_start_loc = torch.cat([zero, query_lens.cumsum(0)]).to(torch.int32).cuda()
        self.context_lens = contexts.cuda()
        self.order: torch.Tensor | None = None

    def order_requests(self) -> None:
        """What a step does once for all layers."""
        self.order = attention_order(
            self.query,
            self.cache[0],
            self.context_lens,
            max_query_len=self.max_query_len,
            max_context_tokens=self.bound,
        )

    def attend(self) -> None:
        paged_attention(
            self.query,
            self.cache[0],
            self.cache[1],
            self.out,
            block_tables=self.tables,
            query_start_loc=self.query_start_loc,
            context_lens=self.context_lens,
            scale=self.query.shape[-1] ** -0.5,
            max_query_len=self.max_query_len,
            max_context_tokens=self.bound,
            order=self.order,
        )


def uniform_batch(shape: Shape, bound: int | None = None, added: int = 0) -> PagedBatch:
    """added: to the context of each request."""
    ones = torch.ones(shape.num_requests, dtype=torch.int64)
    context = shape.context + added
    return PagedBatch(shape, ones * shape.query_len, ones * context, bound or context)


def dense(batch: PagedBatch, shape: Shape) -> list[torch.Tensor]:
    """query [R, H, q, D] and contiguous keys, values [R, Hkv, context, D]."""
    rows = (shape.num_requests, shape.query_len, shape.num_heads, shape.head_dim)
    pages = batch.cache[:, batch.tables.long()].flatten(2, 3)
    return [batch.query.view(rows).transpose(1, 2).contiguous()] + [
        pages[i].transpose(1, 2).contiguous() for i in range(2)
    ]


def torch_attentions(shape: Shape, batch: PagedBatch) -> dict[str, Callable[[], torch.Tensor]]:
    """torch's ways to compute the same; "packed" (q = 1 only) turns a KV head's group into rows."""
    from torch.nn.attention.bias import causal_lower_right  # imports torch's compiler

    query, keys, values = dense(batch, shape)
    mask = causal_lower_right(shape.query_len, shape.context)

    def sdpa(backend: SDPBackend, bias: Any) -> Callable[[], torch.Tensor]:
        def attend() -> torch.Tensor:
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(
                    query, keys, values, attn_mask=bias, enable_gqa=True
                )

        return attend

    def packed() -> torch.Tensor:
        grouped = query.view(shape.num_requests, shape.num_kv_heads, -1, shape.head_dim)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = functional.scaled_dot_product_attention(grouped, keys, values)
        return out.view_as(query)

    ways = {"flash": sdpa(SDPBackend.FLASH_ATTENTION, mask)}
    if shape.query_len == 1:
        ways["cudnn"] = sdpa(SDPBackend.CUDNN_ATTENTION, None)
        ways["flash"] = sdpa(SDPBackend.FLASH_ATTENTION, None)
        ways["packed"] = packed
    return ways


def compare(shape: Shape) -> dict[str, Any]:
    batch = uniform_batch(shape)
    batch.attend()
    ours = batch.out.view(shape.num_requests, shape.query_len, shape.num_heads, -1).float()
    result: dict[str, Any] = {"shape": str(shape), "kv_bytes": shape.kv_bytes}
    times = {"paged": percentiles(replay_us(batch.attend, repeats=5))}
    for name, attend in torch_attentions(shape, batch).items():
        try:
            theirs = attend().transpose(1, 2).float()
            assert (theirs - ours).norm() / theirs.norm() < 2e-2, name
            times[name] = percentiles(replay_us(attend, repeats=5))
        except RuntimeError as error:
            result[f"{name}_refused"] = str(error).splitlines()[0]
    result["us"] = times
    best = min(time["p50"] for name, time in times.items() if name != "paged")
    result["times_best_torch"] = best / times["paged"]["p50"]
    result["terabytes_per_s"] = shape.kv_bytes / times["paged"]["p50"] / 1e6
    return result


def compare_ragged(shape: Shape) -> dict[str, Any]:
    """The same rows and context in total, spread unevenly, under the same bounds.

    Against even batches as they come, whose contexts end anywhere in a tile, and against the best
    case, one whose contexts end with a tile.
    """
    generator = torch.Generator().manual_seed(0)
    bound = 2 * shape.context
    half = shape.num_requests // 2
    spread = torch.randint(0, shape.query_len, (half,), generator=generator)
    query_lens = torch.cat([shape.query_len - spread, shape.query_len + spread])
    spread = torch.randint(0, int(shape.context * 0.9), (half,), generator=generator)
    contexts = torch.cat([shape.context - spread, shape.context + spread])
    order = torch.randperm(shape.num_requests, generator=generator)
    batches = {"ragged": PagedBatch(shape, query_lens[order], contexts[order], bound)}
    batches |= {"aligned": uniform_batch(shape, bound)}
    batches |= {f"uniform{added:+d}": uniform_batch(shape, bound, added) for added in OFF_THE_GRID}
    times = {"order_us": percentiles(replay_us(batches["ragged"].order_requests, repeats=5))}
    for name, batch in batches.items():
        batch.max_query_len = 2 * shape.query_len
        batch.order_requests()
        times[f"{name}_us"] = percentiles(replay_us(batch.attend, repeats=5))
    ragged = times["ragged_us"]["p50"]
    uniform = [time["p50"] for name, time in times.items() if name.startswith("uniform")]
    return {
        "shape": str(shape),
        "ragged_over_uniform": ragged / statistics.mean(uniform),
        "ragged_over_aligned": ragged / times["aligned_us"]["p50"],
    } | times


def test_uniform(record_bench: RecordBench) -> None:
    results = [compare(shape) for shape in SHAPES]
    record_bench("paged_attention_uniform", results, dtype="bfloat16", block_size=BLOCK_SIZE)
    for result in results:
        times = {name: round(time["p50"], 1) for name, time in result["us"].items()}
        print(result["shape"], times, round(result["times_best_torch"], 3), end=" ")
        print(
            f"{result['terabytes_per_s']:.2f} TB/s", {k: v for k, v in result.items() if "ref" in k}
        )


def test_ragged(record_bench: RecordBench) -> None:
    shapes = [
        Shape(256, 4, 1024, 32, 8, 128),
        Shape(64, 4, 4096, 32, 8, 128),
        Shape(256, 4, 512, 9, 3, 64),
    ]
    results = [compare_ragged(shape) for shape in shapes]
    record_bench("paged_attention_ragged", results, dtype="bfloat16", block_size=BLOCK_SIZE)
    for result in results:
        ratios = [round(result[f"ragged_over_{than}"], 3) for than in ("uniform", "aligned")]
        print(result["shape"], *ratios)
