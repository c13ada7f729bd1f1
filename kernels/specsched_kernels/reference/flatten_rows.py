"""Rows of one query token each in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["QueryRows", "flatten_rows"]


@dataclass(frozen=True, slots=True)
class QueryRows:
    """What each of n query rows may read.

    request_ids: int32 [n], -1 for padding. context_lens: int32 [n], tokens that a row reads, its
    own included; 0 for padding. block_tables: int32 [n, max_blocks], its request's; entries past a
    row's context are 0 or of an earlier step.
    """

    request_ids: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor | None

    @classmethod
    def empty(
        cls, num_rows: int, max_blocks: int | None, device: torch.device | str = "cpu"
    ) -> QueryRows:
        """Padding alone, with block tables unless max_blocks is None."""
        tables = None
        if max_blocks is not None:
            tables = torch.zeros((num_rows, max_blocks), dtype=torch.int32, device=device)
        return cls(
            request_ids=torch.full((num_rows,), -1, dtype=torch.int32, device=device),
            context_lens=torch.zeros(num_rows, dtype=torch.int32, device=device),
            block_tables=tables,
        )


def flatten_rows(
    query_start_loc: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    out: QueryRows,
) -> None:
    """Fill `out`, see `specsched_kernels.flatten_rows`."""
    num_rows, max_blocks = len(out.request_ids), block_tables.shape[1]
    starts, device = query_start_loc.long(), block_tables.device
    requests = torch.arange(len(context_lens), device=device)
    request = requests.repeat_interleave(starts.diff())[:num_rows]
    rows = torch.arange(len(request), device=device)
    context = context_lens[request] - (starts[request + 1] - rows) + 1
    context = context.clamp(min=0, max=max_blocks * block_size)
    out.request_ids.fill_(-1)
    out.request_ids[: len(request)] = request.to(torch.int32)
    out.context_lens.zero_()
    out.context_lens[: len(request)] = context.to(torch.int32)
    if out.block_tables is None:
        return
    is_used = torch.arange(max_blocks, device=device) * block_size < context[:, None]
    tables = out.block_tables[: len(request)]
    tables.copy_(torch.where(is_used, block_tables[request], tables))
