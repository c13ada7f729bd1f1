"""Packed token ids and KV slots: by hand, then device code against the reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from specsched_kernels.allocate_verify_lens import VerifyAllocation, allocate_verify_lens
from specsched_kernels.pack_rows import PackedRows, RowSources, pack_rows

from tests.kernels._allocation_cases import random_case


def step(seed: int, r: int, k: int) -> tuple[VerifyAllocation, RowSources]:
    case = random_case(seed, "uniform", r, k, prefill=True)
    allocation = allocate_verify_lens(*case.args, **case.kwargs)
    base, num_slots = case.kwargs["num_base_rows"], case.args[0].shape[0]
    is_prompt = (base != 1) | (torch.arange(r) % 3 == 0)
    start = torch.cat([torch.zeros(1), torch.where(is_prompt, base, 0).cumsum(0)])[:-1]
    return allocation, RowSources(
        anchor_token_ids=torch.randint(0, 50_000, (num_slots,)),
        draft_token_ids=torch.randint(0, 50_000, (num_slots, k)),
        block_tables=torch.randint(0, 10_000, (r, 700)).to(torch.int32),
        slot_ids=case.kwargs["slot_ids"],
        num_base_rows=base,
        prompt_token_ids=torch.randint(0, 50_000, (int(base.sum()) + 1,)),
        prompt_start=torch.where(is_prompt, start.to(torch.int32), -1),
    )


def test_rows_by_hand() -> None:
    allocation = VerifyAllocation(
        verify_lens=torch.tensor([1, 0], dtype=torch.int32),
        query_start_loc=torch.tensor([0, 2, 5], dtype=torch.int32),
        row_to_request=torch.tensor([0, 0, 1, 1, 1, -1], dtype=torch.int32),
        row_positions=torch.tensor([7, 8, 0, 1, 2, 0]),
        logit_start_loc=torch.tensor([0, 2, 3], dtype=torch.int32),
        logit_rows=torch.tensor([0, 1, 4, 0, 0, 0]),
    )
    sources = RowSources(
        anchor_token_ids=torch.tensor([11, 22]),
        draft_token_ids=torch.tensor([[31, 32], [41, 42]]),
        block_tables=torch.tensor([[5, 9, 6], [2, 0, 0]], dtype=torch.int32),
        num_base_rows=torch.tensor([1, 3], dtype=torch.int32),
        prompt_token_ids=torch.tensor([1, 2, 3]),
        prompt_start=torch.tensor([-1, 0], dtype=torch.int32),
    )
    packed = pack_rows(allocation, sources, 4)
    assert packed.token_ids.tolist() == [11, 31, 1, 2, 3, 0]
    assert packed.slot_mapping.tolist() == [39, 24, 8, 9, 10, -1]


@pytest.mark.parametrize(("r", "k"), [(1, 1), (5, 3), (99, 7)])
@pytest.mark.parametrize("block_size", [16, 24])
def test_device_code_is_the_reference(device: str, r: int, k: int, block_size: int) -> None:
    from specsched_kernels.triton.pack_rows import pack_rows as launch

    allocation, sources = step(r, r, k)
    expected = pack_rows(allocation, sources, block_size)
    out = PackedRows.empty(len(expected.token_ids), device)
    out.token_ids.fill_(-77)
    out.slot_mapping.fill_(-77)
    moved = [
        dataclasses.replace(
            record,
            **{
                field.name: getattr(record, field.name).to(device)
                for field in dataclasses.fields(record)
            },
        )
        for record in (allocation, sources)
    ]
    launch(*moved, block_size, out)
    assert torch.equal(out.token_ids.cpu(), expected.token_ids)
    assert torch.equal(out.slot_mapping.cpu(), expected.slot_mapping)
