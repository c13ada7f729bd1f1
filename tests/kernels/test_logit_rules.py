"""Rules on logits on the device: device code against the torch reference, and that by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from specsched_kernels.logit_rules import RuledRequests, apply_logit_rules, count_tokens
from specsched_kernels.rule_tables import LogitRules, LogitRuleSizes, LogitRuleTables

MAX_SEEN, MAX_BIASES, MAX_STOPS = 1300, 200, 131


def move(record: Any, device: str) -> Any:
    values = {f.name: getattr(record, f.name).to(device) for f in dataclasses.fields(record)}
    return type(record)(**values)


def copy_of(tables: LogitRuleTables, device: str = "cpu") -> LogitRuleTables:
    return LogitRuleTables(tables.rows.clone().to(device), tables.sizes)


def distinct(num_rows: int, width: int, vocab: int) -> torch.Tensor:
    """int32 [num_rows, width]: no token twice in a row, past them what is no token."""
    rows = torch.full((num_rows, width), vocab, dtype=torch.int32)
    for row in rows:
        tokens = torch.randperm(vocab)[:width]
        row[: len(tokens)] = tokens
    return rows


def some_tables(num_slots: int, vocab: int, max_seen: int = MAX_SEEN) -> LogitRuleTables:
    def up_to(most: int) -> torch.Tensor:
        return torch.randint(0, min(most, vocab) + 1, (num_slots,), dtype=torch.int32)

    tables = LogitRuleTables.empty(num_slots, LogitRuleSizes(max_seen, MAX_BIASES, MAX_STOPS))
    tables.factors.copy_(torch.rand(num_slots, 3) * 2 + torch.tensor([0.2, -1.0, -1.0]))
    tables.seen[:, :, 0] = distinct(num_slots, max_seen, vocab)
    tables.seen[:, :, 1].random_(0, 5)
    tables.num_seen.copy_(up_to(max_seen))
    tables.num_seen[::3] = 0
    tables.bias_token_ids.copy_(distinct(num_slots, MAX_BIASES, vocab))
    tables.biases.copy_(torch.randn(num_slots, MAX_BIASES) * 3)
    tables.num_biases.copy_(up_to(MAX_BIASES))
    tables.stop_token_ids.copy_(distinct(num_slots, MAX_STOPS, vocab))
    tables.num_stops.copy_(up_to(MAX_STOPS))
    tables.min_positions.random_(95, 105)
    return tables


def some_requests(num_requests: int, num_slots: int, num_ruled: int) -> RuledRequests:
    slot_ids = torch.randperm(num_slots)[:num_requests]
    indexes = torch.randperm(num_requests).to(torch.int32)
    return RuledRequests(torch.tensor([num_ruled], dtype=torch.int32), indexes, slot_ids)


@pytest.mark.parametrize(
    ("num_requests", "num_ruled", "k", "vocab"),
    [(1, 1, 1, 7), (5, 0, 3, 61), (5, 3, 3, 989), (3, 3, 7, 2003), (99, 61, 16, 4099)],
)
def test_device_code_changes_what_the_reference_does(
    device: str, num_requests: int, num_ruled: int, k: int, vocab: int
) -> None:
    if device == "cpu" and num_requests > 9:
        pytest.skip("too many rows for the interpreter")
    from specsched_kernels.triton.logit_rules import apply_logit_rules as launch

    num_slots = num_requests + 2
    tables, ruled = some_tables(num_slots, vocab), some_requests(num_requests, num_slots, num_ruled)
    num_rows = torch.randint(0, k + 2, (num_requests,))
    num_rows[ruled.indexes[:1]] = k + 1
    starts = torch.cat([torch.zeros(1), num_rows.cumsum(0)]).to(torch.int32)
    # Some drafts are seen tokens, some are not, some come twice.
    drafts = torch.randint(0, vocab, (num_slots, k))
    seen = tables.seen[:, :k, 0].long()
    drafts = torch.where((torch.rand(drafts.shape) < 0.3) & (seen < vocab), seen, drafts)
    drafts[:, -1] = drafts[:, 0]
    positions = torch.randint(90, 110, (num_requests,))
    logits = torch.randn(int(starts[-1]) + 3, vocab) * 4
    logits[::2, ::5] = -math.inf
    expected = logits.clone()
    apply_logit_rules(expected, tables, ruled, starts, positions, drafts)
    got = logits.clone().to(device)
    others = (tensor.to(device) for tensor in (starts, positions, drafts))
    launch(got, copy_of(tables, device), move(ruled, device), *others)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
    of_ruled = torch.zeros(len(logits), dtype=torch.bool)
    for index, _ in ruled.tolist():
        of_ruled[starts[index] : starts[index + 1]] = True
    assert torch.equal(expected[~of_ruled], logits[~of_ruled])
    assert bool(num_ruled) == (not torch.equal(expected, logits))


@pytest.mark.parametrize(
    ("num_requests", "num_ruled", "k", "max_seen"),
    [(1, 1, 1, 9), (5, 0, 3, 30), (7, 5, 3, 30), (3, 3, 7, MAX_SEEN), (99, 61, 16, 700)],
)
def test_device_code_counts_what_the_reference_does(
    device: str, num_requests: int, num_ruled: int, k: int, max_seen: int
) -> None:
    from specsched_kernels.triton.logit_rules import count_tokens as launch

    num_slots, vocab = num_requests + 2, 2 * max_seen
    tables = some_tables(num_slots, vocab, max_seen)
    ruled = some_requests(num_requests, num_slots, num_ruled)
    tokens = torch.randint(0, vocab, (num_requests, k + 1))
    tokens[::2, -1] = tokens[::2, 0]
    accepted = torch.randint(0, k + 1, (num_requests,), dtype=torch.int32)
    moved, before = copy_of(tables, device), copy_of(tables)
    count_tokens(tables, ruled, tokens, accepted)
    launch(moved, move(ruled, device), tokens.to(device), accepted.to(device))
    found = copy_of(moved)
    assert torch.equal(found.num_seen, tables.num_seen)
    for slot, num_seen in enumerate(tables.num_seen.tolist()):
        # In which order new tokens came is nobody's concern.
        counts = (dict(each.seen[slot, :num_seen].tolist()) for each in (found, tables))
        assert next(counts) == next(counts)
    grown = sum(int(tables.num_seen[slot] > before.num_seen[slot]) for _, slot in ruled.tolist())
    assert grown or num_ruled < 2


def one_slot(**fields: Any) -> LogitRuleTables:
    tables = LogitRuleTables.empty(1, LogitRuleSizes(max_seen=6, max_biases=2, max_stops=2))
    tables.factors[0] = torch.tensor([1.0, 0.0, 0.0])
    for name, values in fields.items():
        getattr(tables, name)[0, : len(values)] = torch.tensor(values)
        number = {"seen": "num_seen", "biases": "num_biases", "stop_token_ids": "num_stops"}
        if name in number:
            getattr(tables, number[name])[0] = len(values)
    return tables


def rows_of(tables: LogitRuleTables, logits: list[list[float]], drafts: list[int]) -> Any:
    rows = torch.tensor(logits)
    ruled = RuledRequests(
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([0], dtype=torch.int32),
        torch.tensor([0]),
    )
    starts = torch.tensor([0, len(rows)], dtype=torch.int32)
    apply_logit_rules(rows, tables, ruled, starts, torch.tensor([10]), torch.tensor([drafts]))
    return rows.tolist()


def test_penalties_take_the_drafts_before_a_row_for_output() -> None:
    tables = one_slot(
        factors=[2.0, 0.5, 0.25], seen=[[3, 0], [1, 1]], bias_token_ids=[1], biases=[2.0]
    )
    got = rows_of(tables, [[4.0, 4.0, 4.0, -4.0]] * 3, [3, 2])
    assert got[0] == [4.0, 6.0 / 2 - 0.75, 4.0, -8.0]
    assert got[1] == [4.0, 2.25, 4.0, -8.75]
    assert got[2] == [4.0, 2.25, 2.0 - 0.75, -8.75]


def test_ends_are_impossible_below_the_minimum_whatever_their_bias() -> None:
    tables = one_slot(stop_token_ids=[1], bias_token_ids=[1], biases=[100.0])
    tables.min_positions[0] = 12
    got = rows_of(tables, [[0.0, 1.0]] * 3, [0, 0])
    assert got == [[0.0, -math.inf], [0.0, -math.inf], [0.0, 101.0]]


def test_what_fills_a_slot_replaces_what_was_there(device: str) -> None:
    sizes = LogitRuleSizes(max_seen=6, max_biases=3, max_stops=2)
    tables = LogitRuleTables.empty(3, sizes, device)
    rules = LogitRules(
        (1.5, 0.25, -0.5),
        np.array([[4, 0], [2, 3]], dtype=np.int32),
        [(5, 0.75), (1, -2.0)],
        stop_token_ids=[9],
        min_position=11,
    )
    tables.fill(1, dataclasses.replace(rules, biases=[(7, 1.0)] * 3, stop_token_ids=[3, 4]))
    tables.fill(1, rules)
    assert tables.factors[1].tolist() == [1.5, 0.25, -0.5]
    assert tables.seen[1, :2].tolist() == [[4, 0], [2, 3]]
    assert tables.bias_token_ids[1].tolist() == [5, 1, 0]
    assert tables.biases[1].tolist() == [0.75, -2.0, 0.0]
    assert tables.stop_token_ids[1].tolist() == [9, 0]
    counts = (tables.num_seen, tables.num_biases, tables.num_stops, tables.min_positions)
    assert [int(count[1]) for count in counts] == [2, 2, 1, 11]
    assert not tables.rows[::2].any()


def test_rules_without_room_are_refused_with_what_there_is_room_for() -> None:
    tables = LogitRuleTables.empty(1, LogitRuleSizes(max_seen=1, max_biases=1, max_stops=1))
    nothing = np.zeros((0, 2), dtype=np.int32)
    rules = LogitRules((1.0, 0.0, 0.0), nothing, [(1, 1.0), (2, 1.0)], [], 0)
    with pytest.raises(ValueError, match="2 biases; accepted: at most 1"):
        tables.fill(0, rules)
