"""A ragged batch as rows of one token each, laid out from lengths that only the device knows."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import flatten_rows as reference

__all__ = ["QueryRows", "flatten_rows"]

QueryRows = reference.QueryRows


def flatten_rows(
    query_start_loc: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    *,
    num_rows: int,
    with_block_tables: bool,
    block_size: int = 64,
    out: QueryRows | None = None,
) -> QueryRows:
    """Request, context length and block table of each query row.

    query_start_loc: int32 or int64 [R+1], not falling; a request without rows may stand anywhere.
    context_lens: int32 or int64 [R], tokens of each request in the cache, this step's rows
    included: row i of request r reads context_lens[r] - query_len[r] + i + 1 tokens, at most what
    its block table holds. block_tables: int32 [R, max_blocks].

    Returns `out`, of num_rows rows; rows that the batch has beyond them are left out. Rows past
    query_start_loc[-1] are padding: request -1, context length 0. `with_block_tables` asks for a
    block table per row, which DeepGEMM wants; of it the entries that a row's context needs are
    written, the others stay as they were. One launch on CUDA, nothing is read back.
    Raises ValueError for another shape or dtype.
    """
    num_requests, max_blocks = block_tables.shape
    device, lens = block_tables.device, (torch.int32, torch.int64)
    if out is None:
        out = QueryRows.empty(num_rows, max_blocks if with_block_tables else None, device)
    check_tensor("query_start_loc", query_start_loc, (num_requests + 1,), lens, device)
    check_tensor("context_lens", context_lens, (num_requests,), lens, device)
    check_tensor("block_tables", block_tables, (num_requests, max_blocks), torch.int32, device)
    check_tensor("out.request_ids", out.request_ids, (num_rows,), torch.int32, device)
    check_tensor("out.context_lens", out.context_lens, (num_rows,), torch.int32, device)
    if (out.block_tables is None) == with_block_tables:
        raise ValueError(f"with_block_tables is {with_block_tables}; accepted: as `out` was made")
    if out.block_tables is not None:
        shape = (num_rows, max_blocks)
        check_tensor("out.block_tables", out.block_tables, shape, torch.int32, device)
    arguments = (query_start_loc, context_lens, block_tables, block_size, out)
    if device.type == "cpu":
        reference.flatten_rows(*arguments)
    else:
        from specsched_kernels.triton.flatten_rows import flatten_rows as launch

        launch(*arguments)
    return out
