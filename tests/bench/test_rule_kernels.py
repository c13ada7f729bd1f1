"""Rules on logits on the device: what a step pays while nobody has any, one has, or everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from specsched_kernels.logit_rules import RuledRequests, apply_logit_rules, count_tokens
from specsched_kernels.rule_tables import LogitRuleSizes, LogitRuleTables

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
NUM_BIASES = 8
SIZES = LogitRuleSizes(max_seen=16_384, max_biases=1024, max_stops=130)


def penalised(vocab: int, num_seen: int) -> LogitRuleTables:
    """Every slot has seen as many tokens, and has some biases and an end that is held off."""
    tables = LogitRuleTables.empty(NUM_REQUESTS, SIZES, "cuda")
    tables.factors.copy_(torch.tensor([1.2, 0.1, 0.1]))
    tables.seen[:, :num_seen, 0] = torch.randperm(vocab, device="cuda")[:num_seen].int()
    tables.num_seen.fill_(num_seen)
    tables.bias_token_ids[:, :NUM_BIASES] = torch.randperm(vocab, device="cuda")[:NUM_BIASES].int()
    tables.num_biases.fill_(NUM_BIASES)
    tables.num_stops.fill_(1)
    tables.min_positions.fill_(1000)
    return tables


def works(vocab: int, num_ruled: int, num_seen: int) -> dict[str, Callable[[], None]]:
    r, k = NUM_REQUESTS, MAX_DRAFT_TOKENS
    rows, order = r * (k + 1), torch.arange(r, device="cuda")
    tables = penalised(vocab, num_seen)
    ruled = RuledRequests(
        torch.tensor([num_ruled], dtype=torch.int32, device="cuda"), order.int(), order
    )
    logits = torch.randn(rows, vocab, device="cuda")
    starts = torch.arange(0, rows + 1, k + 1, dtype=torch.int32, device="cuda")
    tokens = torch.randint(0, vocab, (r, k + 1), device="cuda")
    drafts = tokens[:, :k].contiguous()
    accepted = torch.full((r,), k // 2, dtype=torch.int32, device="cuda")
    positions = torch.full((r,), 100, device="cuda")
    return {
        "apply": lambda: apply_logit_rules(logits, tables, ruled, starts, positions, drafts),
        "count": lambda: count_tokens(tables, ruled, tokens, accepted),
    }


def test_rules(record_bench: RecordBench) -> None:
    cases = [
        (vocab, num_ruled, num_seen)
        for vocab in (49_152, 151_936)
        for num_ruled, num_seen in ((0, 1000), (1, 1000), (256, 1000), (1, 8000), (256, 8000))
    ]
    results: list[dict[str, Any]] = [
        {
            "kernel": name,
            "vocab": vocab,
            "ruled": num_ruled,
            "seen": num_seen,
            "us": percentiles(replay_us(work, repeats=5, num_replays=10)),
        }
        for vocab, num_ruled, num_seen in cases
        for name, work in works(vocab, num_ruled, num_seen).items()
    ]
    record_bench("logit_rules", results, requests=NUM_REQUESTS, rows_each=MAX_DRAFT_TOKENS + 1)
    for each in results:
        print(each["kernel"], each["vocab"], each["ruled"], each["seen"], each["us"]["p50"])
