"""A step of DeepSeek-V3.2 layers: ragged as scheduled, against uniform of the same rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from specsched_executor.core import ModelBatch
from specsched_executor.model import DecoderModel, LinearLayout
from specsched_executor.model.attention_plan import plan_attention
from specsched_executor.model.dummy import DummyCheckpoint
from specsched_executor.model.linear import LinearFactory
from specsched_executor.model.weights import load_weights
from specsched_kernels.indexer_logits import INDEX_DIM, KEY_BLOCK_SIZE

from tests.bench.conftest import RecordBench
from tests.bench.gpu_timing import replay_us
from tests.bench.recording import percentiles

pytestmark = [
    pytest.mark.bench,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PRESET = "deepseek-v32-h200"
BLOCK = KEY_BLOCK_SIZE
CONTEXT = 8192
ROWS_PER_REQUEST = 4
SIZES = (1, 8, 32, 64, 128, 256)
SIZES_IN_DETAIL = (1, 8, 256)
NUM_KERNELS = 12
ROUNDS = 3


def ragged_lens(num_requests: int, mean: int) -> list[int]:
    """Between 1 and 2 * mean - 1 rows of each request, num_requests * mean in all."""
    if num_requests == 1:
        return [mean]
    spread = torch.randint(
        0, mean, (num_requests // 2,), generator=torch.Generator().manual_seed(0)
    )
    lens = torch.cat([mean - spread, mean + spread])
    order = torch.randperm(num_requests, generator=torch.Generator().manual_seed(1))
    return lens[order].tolist()


def make_batch(query_lens: list[int], context: int, *, is_uniform: bool) -> ModelBatch:
    """Requests of `context` tokens each, in blocks out of order."""
    num_requests, num_rows = len(query_lens), sum(query_lens)
    max_blocks = -(-context // BLOCK)
    order = torch.randperm(num_requests * max_blocks, generator=torch.Generator().manual_seed(0))
    tables = order.view(num_requests, max_blocks).to(torch.int32)
    lens = torch.tensor(query_lens)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lens.cumsum(0)])
    requests = torch.arange(num_requests).repeat_interleave(lens)
    positions = context - lens[requests] + torch.arange(num_rows) - starts[requests]
    slots = tables[requests, positions // BLOCK].long() * BLOCK + positions % BLOCK
    tokens = torch.randint(0, 1000, (num_rows,), generator=torch.Generator().manual_seed(2))
    arrays = {
        "token_ids": tokens,
        "positions": positions,
        "slot_mapping": slots,
        "query_start_loc": starts.to(torch.int32),
        "context_lens": torch.full((num_requests,), context),
        "block_tables": tables,
        "logit_rows": torch.arange(num_rows),
    }
    return ModelBatch(
        **{name: array.cuda() for name, array in arrays.items()},
        max_query_len=max(query_lens),
        max_context_tokens=max_blocks * BLOCK,
        uniform_query_len=query_lens[0] if is_uniform else None,
    )


@torch.inference_mode()
def fill_cache(cache: Any) -> None:
    """Keys that differ, so that the choice is a real one."""
    for latents, keys in zip(cache.latents, cache.index_keys, strict=True):
        latents.normal_()
        blocks = keys.view(len(keys), -1)
        values = torch.randn((len(keys), BLOCK * INDEX_DIM), device="cuda")
        blocks[:, : BLOCK * INDEX_DIM] = values.to(torch.float8_e4m3fn).view(torch.uint8)
        blocks[:, BLOCK * INDEX_DIM :].view(torch.float32).fill_(0.01)


def kernel_ms(work: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of the kernels that take most of one call, and of all together."""
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
    ) as profile:
        work()
        torch.cuda.synchronize()
    times = {event.key: event.self_device_time_total / 1e3 for event in profile.key_averages()}
    largest = sorted(times, key=lambda name: -times[name])[:NUM_KERNELS]
    named = {name[:80]: round(times[name], 3) for name in largest}
    return {"all": round(sum(times.values()), 3), **named}


def test_a_ragged_step_costs_what_a_uniform_one_does(record_bench: RecordBench) -> None:
    results, shares = [], {}
    checkpoint = DummyCheckpoint.of_preset(PRESET)
    config = replace(checkpoint.spec.config, max_context_tokens=CONTEXT)
    spec = replace(checkpoint.spec, config=config)
    with torch.inference_mode():
        weights = load_weights(checkpoint, LinearFactory(LinearLayout.AUTO, torch.bfloat16, "cuda"))
    models = {
        is_scheduled: DecoderModel(
            spec, weights, plan_attention(spec, torch.device("cuda"), is_scheduled=is_scheduled)
        )
        for is_scheduled in (True, False)
    }
    cache = models[True].allocate_kv_cache(max(SIZES) * CONTEXT // BLOCK, BLOCK)
    fill_cache(cache)
    for num_requests in SIZES:
        kinds = {
            "ragged": (True, ragged_lens(num_requests, ROWS_PER_REQUEST)),
            "uniform": (False, [ROWS_PER_REQUEST] * num_requests),
        }
        samples: dict[str, list[float]] = {kind: [] for kind in kinds}
        batches = {
            kind: make_batch(lens, CONTEXT, is_uniform=not is_ragged)
            for kind, (is_ragged, lens) in kinds.items()
        }
        for _ in range(ROUNDS):  # in turn, so that a drift of the clocks hits both
            for kind, (is_ragged, _) in kinds.items():
                model, batch = models[is_ragged], batches[kind]
                work = lambda m=model, b=batch: m.forward(b, cache)  # noqa: E731
                samples[kind] += replay_us(work, repeats=1, num_replays=10)
        for kind, times in samples.items():
            row = {
                "requests": num_requests,
                "rows": num_requests * ROWS_PER_REQUEST,
                "kind": kind,
                "attention": models[kinds[kind][0]].attention_plan.name,
                **percentiles(times),
            }
            results.append(row)
            print(row, flush=True)
        if num_requests in SIZES_IN_DETAIL:
            work = partial(models[True].forward, batches["ragged"], cache)
            shares[f"{num_requests * ROWS_PER_REQUEST} rows"] = kernel_ms(work)
    print(json.dumps(shares, indent=1), flush=True)
    record_bench(
        "sparse_model",
        results,
        preset=PRESET,
        context_tokens=CONTEXT,
        unit="microseconds of graph replay",
        kernel_ms_of_ragged_steps=shares,
    )
