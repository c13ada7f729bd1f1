"""Fill the rows that an allocation laid out: token ids and KV slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.allocate_verify_lens import VerifyAllocation
from specsched_kernels.reference import pack_rows as reference

__all__ = ["PackedRows", "RowSources", "pack_rows"]

RowSources = reference.RowSources


@dataclass(frozen=True, slots=True)
class PackedRows:
    """token_ids, slot_mapping: int64 [padded_rows]; 0 and -1 in padded rows."""

    token_ids: torch.Tensor
    slot_mapping: torch.Tensor

    @classmethod
    def empty(cls, padded_rows: int, device: torch.device | str = "cpu") -> PackedRows:
        """Uninitialised outputs, for `out=`."""
        return cls(
            token_ids=torch.empty(padded_rows, dtype=torch.int64, device=device),
            slot_mapping=torch.empty(padded_rows, dtype=torch.int64, device=device),
        )


def pack_rows(
    allocation: VerifyAllocation,
    sources: RowSources,
    block_size: int,
    *,
    out: PackedRows | None = None,
) -> PackedRows:
    """Lay the tokens of each request side by side: base rows, then the drafts to be verified.

    The KV slot of a row at `position` of its sequence is
    block_tables[request, position // block_size] * block_size + position % block_size.
    Raises ValueError for a tensor of another shape or dtype.
    """
    device = allocation.row_to_request.device
    num_requests = allocation.verify_lens.shape[0]
    padded_rows = allocation.row_to_request.shape[0]
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; accepted: 1 or more")
    if out is None:
        out = PackedRows.empty(padded_rows, device)
    check_tensor("out.token_ids", out.token_ids, (padded_rows,), torch.int64, device)
    check_tensor("out.slot_mapping", out.slot_mapping, (padded_rows,), torch.int64, device)
    _check_sources(sources, num_requests, device)
    if device.type == "cpu":
        reference.pack_rows(allocation, sources, block_size, out)
    else:
        from specsched_kernels.triton.pack_rows import pack_rows as launch

        launch(allocation, sources, block_size, out)
    return out


def _check_sources(sources: RowSources, num_requests: int, device: torch.device) -> None:
    shape, int32, int64 = (num_requests,), torch.int32, torch.int64
    num_rows = sources.anchor_token_ids.shape[0] if sources.slot_ids is not None else num_requests
    k = sources.draft_token_ids.shape[-1]
    check_tensor("anchor_token_ids", sources.anchor_token_ids, (num_rows,), int64, device)
    check_tensor("draft_token_ids", sources.draft_token_ids, (num_rows, k), int64, device)
    blocks = sources.block_tables.shape[-1]
    check_tensor("block_tables", sources.block_tables, (num_requests, blocks), int32, device)
    if sources.slot_ids is not None:
        check_tensor("slot_ids", sources.slot_ids, shape, (int32, int64), device)
    if sources.num_base_rows is not None:
        check_tensor("num_base_rows", sources.num_base_rows, shape, int32, device)
    if (sources.prompt_token_ids is None) != (sources.prompt_start is None):
        raise ValueError("prompt_token_ids and prompt_start: accepted only together")
    if sources.prompt_start is not None:
        check_tensor("prompt_start", sources.prompt_start, shape, int32, device)
