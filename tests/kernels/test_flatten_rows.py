"""Rows of a ragged batch: by hand, then device code against the reference."""

from __future__ import annotations

import pytest
import torch
from specsched_kernels.flatten_rows import QueryRows, flatten_rows

FILL = -77


def test_rows_by_hand() -> None:
    """Request 1 has no rows in this step; the row of request 2 ends in its third block."""
    tables = torch.tensor([[5, 9, 0], [7, 7, 7], [2, 3, 4]], dtype=torch.int32)
    rows = flatten_rows(
        torch.tensor([0, 3, 3, 4]),
        torch.tensor([5, 8, 9]),
        tables,
        num_rows=6,
        with_block_tables=True,
        block_size=4,
    )
    assert rows.request_ids.tolist() == [0, 0, 0, 2, -1, -1]
    assert rows.context_lens.tolist() == [3, 4, 5, 9, 0, 0]
    assert rows.block_tables is not None
    assert rows.block_tables.tolist() == [
        [5, 0, 0],
        [5, 0, 0],
        [5, 9, 0],
        [2, 3, 4],
        [0, 0, 0],
        [0, 0, 0],
    ]


def batch(query_lens: list[int], context_lens: list[int], max_blocks: int) -> list[torch.Tensor]:
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    tables = torch.arange(1, 1 + len(query_lens) * max_blocks, dtype=torch.int32)
    return [starts, torch.tensor(context_lens), tables.view(len(query_lens), max_blocks)]


def filled(num_rows: int, max_blocks: int | None, device: str) -> QueryRows:
    rows = QueryRows.empty(num_rows, max_blocks, device)
    for tensor in (rows.request_ids, rows.context_lens, rows.block_tables):
        if tensor is not None:
            tensor.fill_(FILL)
    return rows


RAGGED = [3, 1, 0, 8, 5, 0, 1, 2]
CONTEXTS = [70, 1, 40, 200, 5, 0, 65, 64]


@pytest.mark.parametrize(
    ("query_lens", "context_lens", "num_rows", "max_blocks"),
    [
        ([1], [1], 1, 1),
        (RAGGED, CONTEXTS, 20, 4),  # just as many as there are
        (RAGGED, CONTEXTS, 37, 133),  # padding, and more entries than a tile has
        (RAGGED, CONTEXTS, 11, 4),  # fewer than there are: cut off in the middle of a request
        ([0, 0, 0], [9, 0, 3], 9, 2),  # nothing but padding
        ([2, 3], [900, 7], 5, 3),  # a context that its table does not hold
        ([4], [2], 4, 2),  # a context shorter than the rows that count for it
        ([1] * 99, list(range(1, 100)), 101, 2),
    ],
)
@pytest.mark.parametrize("with_block_tables", [True, False])
def test_device_code_is_the_reference(
    device: str,
    query_lens: list[int],
    context_lens: list[int],
    num_rows: int,
    max_blocks: int,
    with_block_tables: bool,
) -> None:
    from specsched_kernels.triton.flatten_rows import flatten_rows as launch

    inputs = batch(query_lens, context_lens, max_blocks)
    width = max_blocks if with_block_tables else None
    expected = flatten_rows(
        *inputs,
        num_rows=num_rows,
        with_block_tables=with_block_tables,
        out=filled(num_rows, width, "cpu"),
    )
    out = filled(num_rows, width, device)
    launch(*[tensor.to(device) for tensor in inputs], 64, out)
    assert torch.equal(out.request_ids.cpu(), expected.request_ids)
    assert torch.equal(out.context_lens.cpu(), expected.context_lens)
    if expected.block_tables is not None and out.block_tables is not None:
        assert torch.equal(out.block_tables.cpu(), expected.block_tables)
        num_used = (expected.context_lens + 63) // 64
        is_used = torch.arange(max_blocks) < num_used[:, None]
        assert (expected.block_tables[is_used] > 0).all()
        assert (expected.block_tables[~is_used] == FILL).all()


def test_out_must_fit_what_is_asked_for() -> None:
    inputs = batch([2], [2], 3)
    with pytest.raises(ValueError, match="with_block_tables is True"):
        flatten_rows(
            *inputs, num_rows=2, with_block_tables=True, out=QueryRows.empty(2, None, "cpu")
        )
    with pytest.raises(ValueError, match=r"out\.request_ids has shape"):
        flatten_rows(
            *inputs, num_rows=2, with_block_tables=False, out=QueryRows.empty(3, None, "cpu")
        )
