"""Places in a drafter's cache: device code as the reference, that by the rule in words."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from specsched_kernels.slot_tables import SlotTables
from specsched_kernels.window_pages import (
    CommittedRows,
    PlacedBlocks,
    WindowPages,
    place_blocks,
    place_context,
)

NUM_SLOTS = 12
PAGES = [WindowPages(24, 3, 7), WindowPages(128, 7, 1), WindowPages(5, 1, 0)]


def moved(record, device: str):
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    return type(record)(**{name: tensor.to(device) for name, tensor in fields.items()})


def committed_rows(num_requests: int, padding: int, seed: int = 0) -> CommittedRows:
    """Anchors with drafts of which some are accepted, prefill chunks, requests without rows."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (num_requests,), generator=generator)

    drafts, base = integers(0, 8), integers(1, 3)
    base[::3] = integers(1, 200)[::3]
    drafts[::3] = 0
    base[1::5], drafts[1::5] = 0, 0
    starts, lens = integers(0, 300), base + drafts
    ends = lens.cumsum(0)
    request = torch.arange(num_requests).repeat_interleave(lens)
    offset = torch.arange(len(request)) - (ends - lens)[request]
    fill = torch.full((padding,), -1)
    return CommittedRows(
        row_to_request=torch.cat([request, fill]).to(torch.int32),
        row_positions=torch.cat([starts[request] + offset, fill * 0]),
        query_start_loc=torch.cat([ends[:1] * 0, ends]).to(torch.int32),
        num_base_rows=base.to(torch.int32),
        num_accepted=(drafts * torch.rand(num_requests, generator=generator)).to(torch.int32),
        slot_ids=torch.randperm(NUM_SLOTS, generator=generator)[:num_requests],
        start_positions=starts,
    )


@pytest.mark.parametrize("pages", PAGES)
@pytest.mark.parametrize("num_requests", [1, 7, 12])
def test_context_is_placed_alike(device: str, pages: WindowPages, num_requests: int) -> None:
    from specsched_kernels.triton.window_pages import place_context as launch

    rows = committed_rows(num_requests, 3, seed=num_requests)
    expected = place_context(pages, rows)
    out = torch.full(expected.shape, -77, device=device)
    launch(pages, moved(rows, device), out)
    assert torch.equal(out.cpu(), expected)


def test_the_newest_committed_tokens_of_a_window_are_kept() -> None:
    pages, rows = PAGES[0], committed_rows(9, 2)
    slots = place_context(pages, rows)
    starts = rows.query_start_loc.tolist()
    for request, slot in enumerate(rows.slot_ids.tolist()):
        count = int(rows.num_base_rows[request] + rows.num_accepted[request])
        first = int(rows.start_positions[request])
        kept = range(max(first, first + count - pages.window), first + count)
        expected = [slot * pages.tokens_per_slot + position % pages.window for position in kept]
        found = slots[starts[request] : starts[request + 1]]
        assert found[found >= 0].tolist() == expected
    assert (slots[starts[-1] :] == -1).all()


def tables() -> SlotTables:
    tables = SlotTables.empty(NUM_SLOTS, 7)
    tables.anchor_token_ids.copy_(torch.randint(0, 99, (NUM_SLOTS,)))
    tables.num_tokens.copy_(torch.randint(0, 300, (NUM_SLOTS,)))
    return tables


@pytest.mark.parametrize("pages", PAGES)
@pytest.mark.parametrize("num_requests", [1, 12])
def test_blocks_are_placed_alike(device: str, pages: WindowPages, num_requests: int) -> None:
    from specsched_kernels.triton.window_pages import place_blocks as launch

    held, slot_ids = tables(), torch.randperm(NUM_SLOTS)[:num_requests]
    slot_ids[3::4] = -1
    draft_lens = torch.randint(0, 3, (num_requests,)).to(torch.int32)
    expected = place_blocks(pages, held, slot_ids, draft_lens)
    out = PlacedBlocks.empty(num_requests, pages, device)
    launch(pages, moved(held, device), slot_ids.to(device), draft_lens.to(device), out)
    for field in dataclasses.fields(out):
        assert torch.equal(getattr(out, field.name).cpu(), getattr(expected, field.name)), field


def test_a_block_lies_behind_its_context() -> None:
    pages, held = PAGES[0], tables()
    held.num_tokens[:2] = torch.tensor([5, 100])
    blocks = place_blocks(pages, held, torch.arange(3), torch.tensor([3, 3, 0]).to(torch.int32))
    assert blocks.context_lens[:2].tolist() == [4 + 3, 24 + 3]
    assert blocks.positions[:6].tolist() == [4, 5, 6, 99, 100, 101]
    first = pages.tokens_per_slot + 24
    assert blocks.slot_mapping.tolist() == [4, 5, 6, first, first + 1, first + 2, -1, -1, -1]
    assert blocks.live_slot_ids.tolist() == [0, 1, -1]
    anchors = held.anchor_token_ids[:3].tolist()
    assert blocks.token_ids.view(3, 3).tolist() == [[anchor, 7, 7] for anchor in anchors]
