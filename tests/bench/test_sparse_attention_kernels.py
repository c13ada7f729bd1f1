"""Sparse latent attention: metadata, logits, selection and attention, ragged and uniform."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from specsched_kernels.deep_gemm import DeepGemm, DeepGemmUnavailable, load_deep_gemm
from specsched_kernels.flatten_rows import QueryRows, flatten_rows
from specsched_kernels.indexer_logits import INDEX_DIM, KEY_BLOCK_SIZE, KEY_BYTES, indexer_logits
from specsched_kernels.select_topk import select_topk
from specsched_kernels.sparse_mla import sparse_mla

from tests.bench.conftest import RecordBench
from tests.bench.gpu_timing import replay_us
from tests.bench.recording import percentiles

pytestmark = [
    pytest.mark.bench,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

# DeepSeek-V3.2 as published.
INDEX_HEADS = 64
HEADS = 128
VALUE_DIM, ROPE_DIM = 512, 64
TOP_K = 2048


@dataclass(frozen=True)
class Batch:
    """Requests in shuffled blocks, and buffers of `num_rows` rows for what the kernels give."""

    query_lens: list[int]
    context: int
    num_rows: int
    tensors: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        num_requests = len(self.query_lens)
        max_blocks = -(-self.context // KEY_BLOCK_SIZE)
        num_blocks = num_requests * max_blocks
        generator = torch.Generator("cuda").manual_seed(0)

        def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device="cuda", dtype=dtype)

        order = torch.randperm(num_blocks, generator=generator, device="cuda")
        keys = normal(num_blocks, KEY_BLOCK_SIZE * INDEX_DIM).to(torch.float8_e4m3fn)
        scales = torch.ones(num_blocks, KEY_BLOCK_SIZE, device="cuda")
        packed = torch.cat([keys.view(torch.uint8), scales.view(torch.uint8)], dim=1)
        starts = torch.tensor([0, *self.query_lens]).cumsum(0).to(torch.int32)
        tensors = {
            "block_tables": order.view(num_requests, max_blocks).to(torch.int32),
            "key_cache": packed.view(num_blocks, KEY_BLOCK_SIZE, KEY_BYTES),
            "query_start_loc": starts.cuda(),
            "context_lens": torch.full((num_requests,), self.context, device="cuda"),
            "index_query": normal(self.num_rows, INDEX_HEADS, INDEX_DIM).to(torch.float8_e4m3fn),
            "head_weights": normal(self.num_rows, INDEX_HEADS, dtype=torch.float32),
            "query": normal(self.num_rows, HEADS, VALUE_DIM + ROPE_DIM),
            "latent_cache": normal(num_blocks, KEY_BLOCK_SIZE, VALUE_DIM + ROPE_DIM),
        }
        object.__setattr__(self, "tensors", tensors)

    def rows(self) -> QueryRows:
        """Launch the metadata into buffers of its own."""
        out = QueryRows.empty(self.num_rows, self.tensors["block_tables"].shape[1], "cuda")
        self.fill(out)
        return out

    def fill(self, out: QueryRows) -> None:
        lens = (self.tensors[name] for name in ("query_start_loc", "context_lens", "block_tables"))
        flatten_rows(*lens, num_rows=self.num_rows, with_block_tables=True, out=out)


def ragged_lens(num_requests: int, mean: int) -> list[int]:
    """Between 1 and 2 * mean - 1 rows of each request, num_requests * mean in all."""
    spread = torch.randint(
        0, mean, (num_requests // 2,), generator=torch.Generator().manual_seed(0)
    )
    lens = torch.cat([mean - spread, mean + spread])
    order = torch.randperm(num_requests, generator=torch.Generator().manual_seed(1))
    return [int(length) for length in lens[order]]


def timed(work: Callable[[], object], repeats: int = 5) -> dict[str, float]:
    return percentiles(replay_us(work, repeats=repeats, num_replays=20))


@functools.cache
def deep_gemm() -> DeepGemm | None:
    found = load_deep_gemm()
    if isinstance(found, DeepGemmUnavailable):
        print(f"\nno DeepGEMM: {found.reason}")
        return None
    return found


def test_metadata(record_bench: RecordBench) -> None:
    """256 requests of 1 to 8 rows. single: a graph of one launch, its start included; floor: of one
    launch that does nothing to speak of; chained: per launch, 20 in a graph."""
    results = []
    nothing = torch.zeros(1, device="cuda")
    gemm = deep_gemm()
    for context in (8192, 131_072):
        max_blocks = context // KEY_BLOCK_SIZE
        lens = torch.randint(1, 9, (256,), generator=torch.Generator().manual_seed(0))
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), lens.cumsum(0)]).cuda()
        contexts = torch.randint(context // 2, context, (256,), device="cuda")
        tables = torch.zeros((256, max_blocks), dtype=torch.int32, device="cuda")
        rows = QueryRows.empty(256 * 8, max_blocks, "cuda")
        row_lens = rows.context_lens.unsqueeze(1)

        def work(
            lens: tuple[torch.Tensor, ...] = (starts, contexts, tables), rows: QueryRows = rows
        ) -> None:
            flatten_rows(*lens, num_rows=256 * 8, with_block_tables=True, out=rows)

        work()
        case: dict[str, Any] = {"num_requests": 256, "num_rows": 2048, "max_context": context}
        case |= {"single_us": timed(work, 1), "chained_us": timed(work, 20)}
        case["floor_us"] = timed(lambda: nothing.fill_(1.0), 1)
        if gemm:
            case["deep_gemm_schedule_us"] = timed(lambda lens=row_lens: gemm.schedule(lens), 1)
        results.append(case)
    record_bench("sparse_metadata", results, unit="microseconds of graph replay")
    for case in results:
        print(summary(case))


def logits_ways(batch: Batch) -> dict[str, Callable[[], torch.Tensor]]:
    """The indexer's logits of a batch by each kernel, DeepGEMM's with its schedule."""
    t, rows = batch.tensors, batch.rows()

    def ours() -> torch.Tensor:
        return indexer_logits(
            t["index_query"],
            t["head_weights"],
            t["key_cache"],
            t["block_tables"],
            rows.request_ids,
            rows.context_lens,
            max_context_tokens=batch.context,
        )

    ways = {"triton": ours}
    gemm = deep_gemm()
    if gemm:

        def theirs() -> torch.Tensor:
            lens = rows.context_lens.unsqueeze(1)
            return gemm.paged_logits(
                t["index_query"].unsqueeze(1),
                t["head_weights"],
                t["key_cache"],
                lens,
                rows.block_tables,
                gemm.schedule(lens),
                max_context_tokens=batch.context,
            )

        ways["deep_gemm"] = theirs
    return ways


def test_kernels(record_bench: RecordBench) -> None:
    """Uniform batches: rows of one request each."""
    results = []
    for num_rows, context in ((8, 8192), (64, 4096), (64, 32_768), (256, 8192), (512, 8192)):
        batch = Batch([1] * num_rows, context, num_rows)
        t, rows, ways = batch.tensors, batch.rows(), logits_ways(batch)
        case: dict[str, Any] = {"num_rows": num_rows, "context": context}
        case |= {f"logits_{name}_us": timed(work) for name, work in ways.items()}
        found = {name: work() for name, work in ways.items()}
        logits = found["triton"]
        if "deep_gemm" in found:
            case["relative_difference"] = float(
                (found["deep_gemm"] - logits).norm() / logits.norm()
            )
        topk = select_topk(logits, rows.context_lens, k=TOP_K)
        case["select_us"] = timed(
            lambda logits=logits, rows=rows: select_topk(logits, rows.context_lens, k=TOP_K)
        )
        attend = attention(t, topk, rows)
        case["attend_us"] = timed(attend)
        case["attend_gathered_bytes"] = num_rows * min(TOP_K, context) * (512 + 64) * 2
        results.append(case)
        print(summary(case))
    record_bench("sparse_kernels", results, **SETTINGS)


def attention(t: dict[str, torch.Tensor], topk: torch.Tensor, rows: QueryRows) -> Callable[[], Any]:
    return lambda: sparse_mla(
        t["query"],
        t["latent_cache"],
        topk,
        t["block_tables"],
        rows.request_ids,
        scale=0.05,
        value_dim=VALUE_DIM,
    )


SETTINGS = {
    "index_heads": INDEX_HEADS,
    "heads": HEADS,
    "kv_lora_rank": VALUE_DIM,
    "qk_rope_head_dim": ROPE_DIM,
    "top_k": TOP_K,
    "dtype": "bfloat16, indexer e4m3",
}


def chain(batch: Batch, way: str) -> Callable[[], None]:
    """Metadata, logits, selection and attention, one after the other, as a layer has them."""
    t, rows, logits_of = batch.tensors, batch.rows(), logits_ways(batch)[way]

    def work() -> None:
        batch.fill(rows)
        topk = select_topk(logits_of(), rows.context_lens, k=TOP_K)
        attention(t, topk, rows)()

    return work


def test_ragged_against_uniform(record_bench: RecordBench) -> None:
    """The same rows in total, shared out evenly among the requests or not."""
    results = []
    for num_requests, mean, context in ((64, 4, 8192), (128, 4, 4096)):
        num_rows = num_requests * mean
        batches = {
            "uniform": Batch([mean] * num_requests, context, num_rows),
            "ragged": Batch(ragged_lens(num_requests, mean), context, num_rows),
        }
        for way in logits_ways(batches["uniform"]):
            case: dict[str, Any] = {
                "logits_by": way,
                "num_requests": num_requests,
                "num_rows": num_rows,
                "context": context,
            }
            for name, batch in batches.items():
                case[f"{name}_us"] = timed(chain(batch, way), 2)
            case["ragged_over_uniform"] = case["ragged_us"]["p50"] / case["uniform_us"]["p50"]
            results.append(case)
            print(summary(case))
    record_bench("sparse_ragged", results, **SETTINGS)


def summary(case: dict[str, Any]) -> str:
    return " ".join(
        f"{key}={value['p50'] if isinstance(value, dict) else value}" for key, value in case.items()
    )
