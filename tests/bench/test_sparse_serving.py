"""Sparse latent attention served over gRPC on a GPU, a scheduler process beside it.

Weights are random. Where tokens are compared, drafts are those of prompt lookup, and the model's
own verification accepts them. Where speed is measured, a drafter of random weights does all its
work, and outcomes are those of a recording: synthetic acceptance.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from specsched_client import Client, Sampling, SchedulerClient
from specsched_executor.config import ExecutorConfig

from scripts.prove.random_drafter import write_random_drafter
from tests.bench.conftest import RecordBench
from tests.bench.driven_gpu import TRACE
from tests.bench.lasting_load import LastingLoad
from tests.bench.served_gpu import ServedGpu, served_gpu
from tests.integration.processes import start_scheduler

pytestmark = [
    pytest.mark.bench,
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

TIMEOUT_S = 240.0
COMMON = {"device": "cuda", "load_format": "dummy", "http_address": "off", "port": 0}

# ===================== Tokens =====================

PROMPTED = 2300
"""Tokens of a prompt: more than the 2048 that a row attends to."""
TOKENS_PRESET = "deepseek-v32-narrow"
MAX_DRAFT_TOKENS = 3
NUM_TOKENS_OF = {8: 64, 1: 192}
"""Output tokens by number of requests; one alone takes longer to repeat itself."""
TOKENS_OPTIONS = {
    "preset": TOKENS_PRESET,
    "drafter": "ngram",
    "max_draft_tokens": MAX_DRAFT_TOKENS,
    "max_num_batched_tokens": 32_768,
    "max_context_tokens": 4096,
}
TOKENS_POLICIES = ("fixed(3)", "fixed(2)", "fixed(1)", "throughput")


def repeated_prompt(index: int) -> list[int]:
    """A random piece again and again, so that there is something to look up."""
    generator = torch.Generator().manual_seed(index)
    piece = torch.randint(0, 256, (37 + index,), generator=generator).tolist()
    return (piece * (PROMPTED // len(piece) + 1))[:PROMPTED]


def answers(served: ServedGpu, num_requests: int) -> list[tuple[int, ...]]:
    """Greedy tokens of all prompts, which come in one order and are all there at the first step."""
    num_tokens = NUM_TOKENS_OF[num_requests]
    sampling = Sampling(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    with Client(served.target) as client, ThreadPoolExecutor(num_requests) as pool:
        asked = []
        for index in range(num_requests):
            prompt = repeated_prompt(index)
            asked.append(pool.submit(client.generate, prompt, sampling, timeout_s=TIMEOUT_S))
            served.wait_for_requests(index + 1)
        served.start()
        return [each.result().token_ids for each in asked]


def served_tokens(
    policy: str, num_requests: int, **options: Any
) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """What was counted, and the tokens."""
    config = ExecutorConfig(
        **COMMON,
        **TOKENS_OPTIONS,
        max_num_seqs=num_requests,
        # All prompts in one step and one captured size: one batch shape, whatever is decided.
        capture_sizes=[num_requests * (MAX_DRAFT_TOKENS + 1)],
        **options,
    )
    with served_gpu(config) as served:
        beginning = served.totals()
        tokens = answers(served, num_requests)
        row = {"num_requests": num_requests, "policy": policy, **served.since(beginning)}
        layout = served.layout_of_decoding(num_requests)
    print(row, flush=True)
    assert set(row["num_replays"]) == {layout}, row
    assert row["num_eager_steps"] == 0, row
    return row, tokens


@pytest.mark.parametrize("num_requests", NUM_TOKENS_OF)
def test_tokens_do_not_depend_on_scheduling(
    record_bench: RecordBench, tmp_path: Path, num_requests: int
) -> None:
    options = {"run_dir": tmp_path / "run", "num_requests": num_requests}
    nothing, expected = served_tokens(
        "no scheduler, off", scheduler="off", fallback="off", **options
    )
    whole = f"fixed({MAX_DRAFT_TOKENS})"
    everything, tokens = served_tokens(
        f"no scheduler, {whole}", scheduler="off", fallback=whole, **options
    )
    results = [nothing, everything | {"same_tokens": tokens == expected}]
    with (
        start_scheduler(tmp_path / "run") as scheduler,
        SchedulerClient(scheduler.target) as control,
    ):
        for policy in TOKENS_POLICIES:
            control.set_policy(policy)
            row, tokens = served_tokens(policy, profile="quick", **options)
            results.append(row | {"same_tokens": tokens == expected})
    record_bench(
        "sparse_served_alone" if num_requests == 1 else "sparse_served_tokens",
        results,
        preset=TOKENS_PRESET,
        weights="random",
        drafts="ngram, accepted by the model's own verification",
        prompt_tokens=PROMPTED,
        output_tokens=NUM_TOKENS_OF[num_requests],
    )
    assert nothing["num_verified_tokens"] == 0
    assert 0 < everything["num_accepted_tokens"] < everything["num_verified_tokens"]
    assert all(row["same_tokens"] for row in results[1:])
    for row in results[2:]:
        if row["policy"] != "throughput":  # which may find that drafts do not pay
            assert row["num_planned_steps"] > 0, row
            assert row["num_verified_tokens"] > 0, row
            # Drafts of the same histories are about as good, whoever says how many are verified.
            is_few = num_requests == 1
            assert is_few or acceptance(row) > acceptance(everything) / 2, row


def acceptance(row: dict[str, Any]) -> float:
    """Of the drafts that were verified."""
    return float(row["num_accepted_tokens"] / max(row["num_verified_tokens"], 1))


# ===================== Speed =====================

PRESET = "deepseek-v32-h200"
CONCURRENCY = (1, 8, 32)
POLICIES = ("throughput", "off", "fixed(1)", "fixed(3)", "fixed(7)")
SETTLE_S, MEASURE_S = 0.5, 1.5
OPTIONS = {
    "preset": PRESET,
    "drafter": "dspark",
    "acceptance_trace": TRACE,
    "max_draft_tokens": 7,
    "max_num_seqs": max(CONCURRENCY),
    "max_num_batched_tokens": 2048,
    "max_context_tokens": 16_384,
    "capture_sizes": [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256],
}
MAX_TOKENS = 12_000


def measured(served: ServedGpu, load: LastingLoad) -> dict[str, Any]:
    """What becomes of a load in a while."""
    beginning, num_tokens, began = served.totals(), load.num_tokens, time.perf_counter()
    time.sleep(MEASURE_S)
    seconds, num_tokens = time.perf_counter() - began, load.num_tokens - num_tokens
    load.check()
    counts = served.since(beginning)
    return {
        "tokens_per_s": round(num_tokens / seconds, 1),
        "ms_per_step": round(seconds * 1e3 / counts["num_steps"], 3),
        **counts,
    }


def test_steps_are_scheduled_and_replayed(record_bench: RecordBench, tmp_path: Path) -> None:
    results = []
    write_random_drafter(PRESET, tmp_path / "drafter")
    config = ExecutorConfig(
        **COMMON, **OPTIONS, run_dir=tmp_path / "run", drafter_checkpoint=tmp_path / "drafter"
    )
    with (
        start_scheduler(tmp_path / "run") as scheduler,
        SchedulerClient(scheduler.target) as control,
        served_gpu(config) as served,
        Client(served.target) as client,
    ):
        served.start()
        info = client.server_info()
        name = client.model_info().served_model_name
        for concurrency in CONCURRENCY:
            load = LastingLoad(client, [repeated_prompt(n) for n in range(concurrency)], MAX_TOKENS)
            with load.running():
                for policy in (*POLICIES, *reversed(POLICIES)):  # so that no place gains
                    control.set_policy(policy)
                    time.sleep(SETTLE_S)
                    row = {"num_requests": concurrency, "policy": policy}
                    results.append(row | measured(served, load))
                    print(results[-1], flush=True)
        layouts = {n: served.layout_of_decoding(n) for n in CONCURRENCY}
    record_bench(
        "sparse_served",
        results,
        model=name,
        drafts="of random weights, synthetic acceptance: outcomes of tests/fixtures/drafts.npz",
        attention_backend=info.attention_backend,
        prompt_tokens=PROMPTED,
        seconds_per_row=MEASURE_S,
        options={name: str(value) for name, value in OPTIONS.items() if name != "acceptance_trace"},
    )
    for row in results:
        # Every step of decoding requests is a graph, in the layout of its number of requests.
        assert set(row["num_replays"]) == {layouts[row["num_requests"]]}, row
        assert row["num_eager_steps"] == 0, row
        assert row["num_failed_steps"] == 0, row
        if row["policy"].startswith("fixed"):
            assert row["num_planned_steps"] > 0, row
            assert 0 < row["num_accepted_tokens"] <= row["num_verified_tokens"], row
