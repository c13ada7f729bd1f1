"""Per-request state on the device: device code against the torch reference."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from specsched_kernels.slot_tables import (
    DraftRanking,
    SlotCommit,
    SlotTables,
    commit_slots,
    read_slots,
    store_drafts,
)

K = 5


def random_tables(num_slots: int) -> SlotTables:
    tables = SlotTables.empty(num_slots, K)
    tables.anchor_token_ids.random_(0, 900)
    tables.num_tokens.random_(1, 5000)
    tables.draft_token_ids.random_(0, 900)
    tables.num_draft_tokens.random_(0, K + 1)
    tables.generations.random_(1, 3)
    return tables


def move(record: Any, device: str) -> Any:
    values = {f.name: getattr(record, f.name).to(device) for f in dataclasses.fields(record)}
    return type(record)(**values)


def copy_of(tables: SlotTables) -> SlotTables:
    return SlotTables(
        **{f.name: getattr(tables, f.name).clone() for f in dataclasses.fields(tables)}
    )


def assert_same(mine: SlotTables, theirs: SlotTables) -> None:
    for field in dataclasses.fields(SlotTables):
        pair = getattr(mine, field.name).cpu(), getattr(theirs, field.name)
        torch.testing.assert_close(*pair, equal_nan=True, rtol=0, atol=0)


def some_slots(num_requests: int, num_slots: int) -> torch.Tensor:
    """Different slots in any order, the last request padding."""
    slot_ids = torch.randperm(num_slots)[:num_requests]
    slot_ids[-1] = -1
    return slot_ids


@pytest.mark.parametrize(("num_requests", "num_slots"), [(1, 3), (7, 9), (131, 200)])
def test_reading(device: str, num_requests: int, num_slots: int) -> None:
    from specsched_kernels.triton.slot_tables import read_slots as launch

    tables, slot_ids = random_tables(num_slots), some_slots(num_requests, num_slots)
    generations = torch.randint(1, 3, (num_requests,))
    given = torch.where(torch.rand(num_requests) < 0.5, torch.randint(0, 99, (num_requests,)), -1)
    limits = torch.randint(0, K + 1, (num_requests,), dtype=torch.int32)
    expected = read_slots(tables, slot_ids, generations, given, limits)
    got = [torch.full_like(tensor, 77).to(device) for tensor in expected]
    inputs = [tensor.to(device) for tensor in (slot_ids, generations, given, limits)]
    launch(move(tables, device), *inputs, *got)
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(mine.cpu(), theirs)
    assert expected[1][-1] == 0


def test_drafts_of_another_generation_do_not_count() -> None:
    tables = SlotTables.empty(2, K)
    tables.num_draft_tokens.fill_(4)
    tables.generations.copy_(torch.tensor([3, 8]))
    limits = torch.tensor([9, 2], dtype=torch.int32)
    for generation, expected in ((3, [4, 0]), (8, [0, 2])):
        generations = torch.full((2,), generation)
        _, present = read_slots(tables, torch.arange(2), generations, torch.full((2,), -1), limits)
        assert present.tolist() == expected


@pytest.mark.parametrize(("num_requests", "num_slots"), [(1, 3), (7, 9), (131, 200)])
def test_committing(device: str, num_requests: int, num_slots: int) -> None:
    from specsched_kernels.triton.slot_tables import commit_slots as launch

    tables = random_tables(num_slots)
    commit = SlotCommit(
        slot_ids=some_slots(num_requests, num_slots),
        samples=torch.rand(num_requests) < 0.7,
        start_positions=torch.randint(0, 4000, (num_requests,)),
        num_base_rows=torch.randint(1, 90, (num_requests,), dtype=torch.int32),
        token_ids=torch.randint(0, 900, (num_requests, K + 1)),
        num_accepted=torch.randint(0, K + 1, (num_requests,), dtype=torch.int32),
    )
    expected = copy_of(tables)
    commit_slots(expected, commit)
    moved = move(tables, device)
    launch(moved, move(commit, device))
    assert_same(moved, expected)
    changed = (expected.num_tokens != tables.num_tokens).nonzero()[:, 0]
    live = commit.slot_ids[commit.samples & (commit.slot_ids >= 0)]
    assert set(changed.tolist()) <= set(live.tolist())


@pytest.mark.parametrize(("num_requests", "num_slots", "num_tokens"), [(1, 3, 5), (131, 200, 2)])
def test_storing_drafts(device: str, num_requests: int, num_slots: int, num_tokens: int) -> None:
    from specsched_kernels.triton.slot_tables import store_drafts as launch

    tables, slot_ids = random_tables(num_slots), some_slots(num_requests + 1, num_slots)
    drafts = (
        slot_ids,
        torch.randint(3, 9, slot_ids.shape),
        torch.randint(0, K + 1, slot_ids.shape, dtype=torch.int32),
        torch.randint(0, 900, (*slot_ids.shape, num_tokens)),
        torch.rand(*slot_ids.shape, num_tokens),
    )
    expected, moved = copy_of(tables), move(copy_of(tables), device)
    store_drafts(expected, *drafts)
    launch(moved, *(tensor.to(device) for tensor in drafts))
    assert_same(moved, expected)
    slot = int(slot_ids[0])
    assert expected.num_draft_tokens[slot] == min(int(drafts[2][0]), num_tokens)
    assert torch.equal(expected.draft_token_ids[slot, :num_tokens], drafts[3][0])


@pytest.mark.parametrize(("num_requests", "num_slots", "num_tokens"), [(1, 3, 5), (131, 200, 2)])
def test_storing_what_drafts_are_ranked_by(
    device: str, num_requests: int, num_slots: int, num_tokens: int
) -> None:
    from specsched_kernels.triton.slot_tables import store_drafts as launch

    tables, slot_ids = random_tables(num_slots), some_slots(num_requests + 1, num_slots)
    r = len(slot_ids)
    confidence = torch.rand(r, num_tokens)
    odd = torch.tensor([0.0, 1.0, torch.nan, 1e-9, 1.0 - 1e-7, 7.0])
    confidence.view(-1)[1::3] = odd.repeat(r * num_tokens)[: len(confidence.view(-1)[1::3])]
    drafts = (
        slot_ids,
        torch.ones_like(slot_ids),
        torch.full((r,), num_tokens, dtype=torch.int32),
        torch.zeros(r, num_tokens, dtype=torch.int64),
        confidence,
    )
    temperature, intercept = torch.rand(2, K) * 3 + 0.3, torch.randn(2, K)
    temperature[1, 1] = 0.0  # as it is
    sampling_temperature = torch.arange(r) % 2 * 0.7
    rankings = [
        DraftRanking(temperature, intercept, sampling_temperature, torch.full((r, K), 9.0))
        for _ in range(2)
    ]
    expected, moved = copy_of(tables), move(copy_of(tables), device)
    store_drafts(expected, *drafts, rankings[0])
    on_device = move(rankings[1], device)
    launch(moved, *(tensor.to(device) for tensor in drafts), on_device)
    close = {"rtol": 1e-5, "atol": 1e-6, "equal_nan": True}
    torch.testing.assert_close(moved.confidence.cpu(), expected.confidence, **close)
    is_live, ranked = slot_ids >= 0, rankings[0].ranked[:, :num_tokens]
    torch.testing.assert_close(
        on_device.ranked.cpu()[is_live, :num_tokens], ranked[is_live], **close
    )
    for request in is_live.nonzero()[:, 0].tolist():
        stored = expected.confidence[slot_ids[request], :num_tokens]
        torch.testing.assert_close(stored, ranked[request], rtol=0, atol=0, equal_nan=True)
        of_class = int(sampling_temperature[request] > 0)
        for position, value in enumerate(confidence[request].tolist()):
            wanted = value
            if 1e-6 < value < 1 - 1e-6 and temperature[of_class, position]:
                logit = math.log(value / (1 - value)) / float(temperature[of_class, position])
                wanted = 1 / (1 + math.exp(-logit - float(intercept[of_class, position])))
                assert float(stored[position]) == pytest.approx(wanted, abs=1e-5)
