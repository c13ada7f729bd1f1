"""What a step of SmolLM2-135M costs on this CPU, by rows, layout, dtype and context; and loading.

Rounds are interleaved over all cases, largest warmed up first. The machine may be shared: the best
and the median round are both reported. Beside the times stands how far the logits of one row move
with the number of rows beside it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.table import Table
from specsched_executor.core import KvCache, ModelBatch
from specsched_executor.model import DecoderModel, Dtype, LinearLayout, LoadOptions, load_model

BLOCK_SIZE = 16
NUM_ROUNDS = 7
ROWS = (1, 2, 3, 4, 8, 16, 32, 64, 128)
ROWS_PER_REQUEST = 8
CONTEXT_TOKENS = 256
VARIANTS = {
    "float32 packed": LoadOptions(linear_layout=LinearLayout.AUTO),
    "float32 stock": LoadOptions(linear_layout=LinearLayout.PLAIN),
    "bfloat16 packed": LoadOptions(dtype=Dtype.BFLOAT16),
}
MIXES = tuple((n, q, c) for n in (1, 4, 16) for q in (1, 8) for c in (200, 1000))


def make_batch(requests: int, rows_each: int, context: int) -> ModelBatch:
    """The last rows of requests that all have the same context."""
    blocks = -(-context // BLOCK_SIZE)
    tables = torch.arange(requests * blocks, dtype=torch.int32).view(requests, blocks)
    positions = torch.arange(context - rows_each, context).repeat(requests)
    request_of_row = torch.arange(requests).repeat_interleave(rows_each)
    block_of_row = tables[request_of_row, positions // BLOCK_SIZE].long()
    return ModelBatch(
        token_ids=torch.randint(0, 40_000, (requests * rows_each,)),
        positions=positions,
        slot_mapping=block_of_row * BLOCK_SIZE + positions % BLOCK_SIZE,
        query_start_loc=torch.arange(requests + 1) * rows_each,
        context_lens=torch.full((requests,), context),
        block_tables=tables,
        logit_rows=torch.arange(requests * rows_each),
    )


def filled_cache(model: DecoderModel, tokens: int) -> KvCache:
    """Pages that were never written are not read from memory: they would look too fast."""
    cache = model.allocate_kv_cache(-(-tokens // BLOCK_SIZE), BLOCK_SIZE)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    return cache


def measure(runs: dict[Any, Callable[[], object]]) -> dict[Any, list[float]]:
    """Case -> ms of each round."""
    samples: dict[Any, list[float]] = {case: [] for case in runs}
    for run in reversed(runs.values()):
        run()
    for _ in range(NUM_ROUNDS):
        for case, run in runs.items():
            started = time.perf_counter()
            run()
            samples[case].append((time.perf_counter() - started) * 1e3)
    return samples


def shape_of(rows: int) -> tuple[int, int]:
    """Requests and rows of each, for this many rows in all."""
    rows_each = min(rows, ROWS_PER_REQUEST)
    return rows // rows_each, rows_each


def print_table(title: str, columns: list[str], lines: list[list[str]]) -> None:
    table = Table(*columns, title=title)
    for line in lines:
        table.add_row(*line)
    Console(width=120).print(table)


def best_and_median(samples: list[float]) -> str:
    return f"{min(samples):.1f} / {statistics.median(samples):.1f}"


def stats(samples: list[float]) -> dict[str, float]:
    return {"best_ms": min(samples), "median_ms": statistics.median(samples)}


def runner(model: DecoderModel, batch: ModelBatch, cache: KvCache) -> Callable[[], object]:
    return lambda: model.forward(batch, cache)


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_step_by_rows(record_bench) -> None:
    runs: dict[tuple[int, str], Callable[[], object]] = {}
    models = {name: load_model(options=options).model for name, options in VARIANTS.items()}
    caches = {name: filled_cache(model, 16 * CONTEXT_TOKENS) for name, model in models.items()}
    for rows in ROWS:
        batch = make_batch(*shape_of(rows), CONTEXT_TOKENS)
        for name, model in models.items():
            runs[rows, name] = runner(model, batch, caches[name])
    samples = measure(runs)
    results = [
        {"variant": name, "rows": rows, **stats(samples[rows, name])} for rows, name in samples
    ]
    lines = [
        [str(rows), *(best_and_median(samples[rows, name]) for name in VARIANTS)] for rows in ROWS
    ]
    title = f"step at context {CONTEXT_TOKENS}, ms, best / median"
    print_table(title, ["rows", *VARIANTS], lines)
    record_bench("model_step_by_rows", results, context_tokens=CONTEXT_TOKENS)


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_step_by_context(record_bench) -> None:
    model = load_model().model
    cache = filled_cache(model, 16 * 1008)
    samples = measure({mix: runner(model, make_batch(*mix), cache) for mix in MIXES})
    results = [
        {"requests": n, "rows_each": q, "context_tokens": c, **stats(samples[n, q, c])}
        for n, q, c in MIXES
    ]
    lines = [
        [*map(str, mix), f"{min(samples[mix]):.1f}", f"{statistics.median(samples[mix]):.1f}"]
        for mix in MIXES
    ]
    print_table(
        "step by context", ["requests", "rows each", "context", "best ms", "median ms"], lines
    )
    record_bench("model_step_by_context", results)


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_row_among_rows(record_bench) -> None:
    """Largest difference of one row's logits between running alone and among others."""
    results = []
    for name, options in VARIANTS.items():
        model = load_model(options=options).model
        cache = filled_cache(model, 16 * CONTEXT_TOKENS)
        whole = make_batch(16, ROWS_PER_REQUEST, CONTEXT_TOKENS)
        expected = model.forward(whole, cache).logits
        worst = 0.0
        for requests in (1, 2, 4, 8):
            rows = requests * ROWS_PER_REQUEST
            part = ModelBatch(
                whole.token_ids[:rows],
                whole.positions[:rows],
                whole.slot_mapping[:rows],
                whole.query_start_loc[: requests + 1],
                whole.context_lens[:requests],
                whole.block_tables[:requests],
                whole.logit_rows[:rows],
            )
            difference = (model.forward(part, cache).logits - expected[:rows]).abs().max()
            worst = max(worst, float(difference))
        results.append({"variant": name, "max_logit_difference": worst})
    print_table(
        "logits of a row, alone against among 128 rows",
        ["variant", "largest difference"],
        [[r["variant"], f"{r['max_logit_difference']:.2e}"] for r in results],
    )
    record_bench("model_row_among_rows", results)


_LOAD = """
import time
started = time.perf_counter()
import specsched_executor.model as model
imported = time.perf_counter()
loaded = model.load_model()
done = time.perf_counter()
with open("/proc/self/status") as status:
    peak_kib = next(line.split()[1] for line in status if line.startswith("VmHWM"))
print(imported - started, done - imported, int(peak_kib) * 1024)
"""


@pytest.mark.bench
def test_loading(record_bench) -> None:
    """In fresh processes; the first fills the page cache."""
    results = []
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", _LOAD], capture_output=True, text=True, check=True
        )
        import_s, load_s, peak_bytes = map(float, done.stdout.split())
        results.append({"import_s": import_s, "load_s": load_s, "peak_bytes": peak_bytes})
    best = min(results, key=lambda result: result["load_s"])
    print_table(
        "loading, best of 4",
        ["import s", "load s", "peak MiB"],
        [[f"{best['import_s']:.2f}", f"{best['load_s']:.2f}", f"{best['peak_bytes'] / 2**20:.0f}"]],
    )
    record_bench("model_loading", results[1:])
