"""Where context and blocks of each slot lie in the cache of a drafter of whole blocks.

Each slot owns as many pages as its longest context and a block need, so that the host has nothing
to hand out. A context token at position p lies at place p mod window, the rows of the block being
drafted behind the context.
"""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import window_pages as reference
from specsched_kernels.slot_tables import SlotTables

__all__ = ["CommittedRows", "PlacedBlocks", "WindowPages", "place_blocks", "place_context"]

CommittedRows = reference.CommittedRows
PlacedBlocks = reference.PlacedBlocks
WindowPages = reference.WindowPages


def place_context(pages: WindowPages, rows: CommittedRows) -> torch.Tensor:
    """int64 [n]: cache slot of each row that a step ran.

    -1 for padding, for rejected drafts and for what lies beyond the window once it is committed.

    Raises ValueError for a tensor of another shape or dtype.
    """
    (num_rows,), (num_requests,) = rows.row_to_request.shape, rows.slot_ids.shape
    device, int32, int64 = rows.row_to_request.device, torch.int32, torch.int64
    for name, shape, dtype in (
        ("row_to_request", (num_rows,), int32),
        ("row_positions", (num_rows,), int64),
        ("query_start_loc", (num_requests + 1,), int32),
        ("num_base_rows", (num_requests,), int32),
        ("num_accepted", (num_requests,), int32),
        ("slot_ids", (num_requests,), int64),
        ("start_positions", (num_requests,), int64),
    ):
        check_tensor(name, getattr(rows, name), shape, dtype, device)
    slots = torch.empty(num_rows, dtype=int64, device=device)
    if device.type == "cpu":
        reference.place_context(pages, rows, slots)
    else:
        from specsched_kernels.triton.window_pages import place_context as launch

        launch(pages, rows, slots)
    return slots


def place_blocks(
    pages: WindowPages, tables: SlotTables, slot_ids: torch.Tensor, draft_lens: torch.Tensor
) -> PlacedBlocks:
    """Blocks [anchor, mask, ..., mask] behind the context of R slots.

    slot_ids: int64 [R], -1 for padding. draft_lens: int32 [R]. Padding and requests that draft
    nothing store nothing and read the pages of some slot. Raises ValueError for another shape or
    dtype.
    """
    (num_requests,), device = slot_ids.shape, slot_ids.device
    check_tensor("slot_ids", slot_ids, (num_requests,), torch.int64, tables.num_tokens.device)
    check_tensor("draft_lens", draft_lens, (num_requests,), torch.int32, device)
    blocks = PlacedBlocks.empty(num_requests, pages, device)
    if device.type == "cpu":
        reference.place_blocks(pages, tables, slot_ids, draft_lens, blocks)
    else:
        from specsched_kernels.triton.window_pages import place_blocks as launch

        launch(pages, tables, slot_ids, draft_lens, blocks)
    return blocks
