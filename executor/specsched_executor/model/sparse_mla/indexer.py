"""What the lightning indexer chooses, in whichever layout a step has."""

from __future__ import annotations

from typing import Final, Protocol

import torch
from specsched_kernels.deep_gemm import DeepGemm
from specsched_kernels.flatten_rows import QueryRows, flatten_rows
from specsched_kernels.indexer_logits import indexer_logits
from specsched_kernels.select_topk import select_topk

from specsched_executor.core import ModelBatch
from specsched_executor.model.sparse_mla.layouts import (
    IndexerDevice,
    IndexerLayout,
    step_layout,
)

__all__ = ["MAX_LOGITS_BYTES", "IndexerStep", "begin_indexer"]

MAX_LOGITS_BYTES: Final = 1 << 30


class IndexerStep(Protocol):
    """The indexer during one forward pass."""

    @property
    def rows(self) -> QueryRows:
        """Request and context length of each row."""

    def choose(
        self, query: torch.Tensor, weights: torch.Tensor, key_cache: torch.Tensor, k: int
    ) -> torch.Tensor:
        """The k positions of each row's context that score most, int32 [n, k], see `select_topk`.

        query: float8_e4m3fn [n, H, 128]; weights: float32 [n, H].
        """


def begin_indexer(
    layout: IndexerLayout, device: IndexerDevice, batch: ModelBatch, max_context_tokens: int
) -> IndexerStep:
    """A step of `batch` in a layout, or in the one that `step_layout` has it run in."""
    query_len = batch.uniform_query_len
    layout = step_layout(layout, has_prompts=batch.has_prompts, is_uniform=query_len is not None)
    if layout is IndexerLayout.GENERIC or device.deep_gemm is None:
        return _GenericStep(batch, max_context_tokens)
    if layout is IndexerLayout.UNIFORM and query_len is not None:
        rows = _uniform_rows(batch, query_len)
    else:
        rows = _flattened_rows(batch, with_block_tables=True)
    is_native = layout is IndexerLayout.NATIVE
    return _DeepGemmStep(device.deep_gemm, rows, max_context_tokens, is_native=is_native)


class _GenericStep:
    """Logits of many rows at a long context are gigabytes: not all are there at once."""

    def __init__(self, batch: ModelBatch, max_context_tokens: int) -> None:
        self.rows = _flattened_rows(batch, with_block_tables=False)
        self._block_tables = batch.block_tables
        self._max_context_tokens = max_context_tokens
        self._rows_at_once = max(1, MAX_LOGITS_BYTES // (4 * max_context_tokens))

    def choose(
        self, query: torch.Tensor, weights: torch.Tensor, key_cache: torch.Tensor, k: int
    ) -> torch.Tensor:
        rows, size = self.rows, self._rows_at_once
        chosen = torch.empty((len(query), k), dtype=torch.int32, device=query.device)
        parts = (query, weights, rows.request_ids, rows.context_lens, chosen)
        for part in zip(*(torch.split(tensor, size) for tensor in parts), strict=True):
            some_query, some_weights, request_ids, context_lens, out = part
            logits = indexer_logits(
                some_query,
                some_weights,
                key_cache,
                self._block_tables,
                request_ids,
                context_lens,
                max_context_tokens=self._max_context_tokens,
            )
            select_topk(logits, context_lens, k=k, out=out)
        return chosen


class _DeepGemmStep:
    """Each row with its own context length and block table; natively also with its request.

    Of rows that DeepGEMM takes together the last must not be padding: so it is given single ones.
    """

    def __init__(
        self,
        deep_gemm: DeepGemm,
        rows: QueryRows,
        max_context_tokens: int,
        *,
        is_native: bool,
    ) -> None:
        if rows.block_tables is None:
            raise TypeError("rows without block tables")
        self.rows = rows
        self._deep_gemm = deep_gemm
        self._block_tables = rows.block_tables
        self._max_context_tokens = max_context_tokens
        self._request_ids = rows.request_ids if is_native else None
        self._context_lens = rows.context_lens.unsqueeze(1)
        self._schedule = deep_gemm.schedule(self._context_lens, self._request_ids)

    def choose(
        self, query: torch.Tensor, weights: torch.Tensor, key_cache: torch.Tensor, k: int
    ) -> torch.Tensor:
        logits = self._deep_gemm.paged_logits(
            query.unsqueeze(1),
            weights,
            key_cache,
            self._context_lens,
            self._block_tables,
            self._schedule,
            max_context_tokens=self._max_context_tokens,
            request_ids=self._request_ids,
        )
        return select_topk(logits, self.rows.context_lens, k=k)


def _uniform_rows(batch: ModelBatch, query_len: int) -> QueryRows:
    """Rows r * query_len to (r + 1) * query_len - 1 are those of request r, or padding."""
    num_requests = len(batch.block_tables)
    num_rows = num_requests * query_len
    if num_rows != len(batch.positions):
        raise ValueError(
            f"{len(batch.positions)} rows of {num_requests} requests; accepted: {query_len} of each"
        )
    is_row = batch.slot_mapping >= 0
    requests = torch.arange(num_rows, device=is_row.device) // query_len
    tables = batch.block_tables
    if query_len > 1:
        tables = tables.repeat_interleave(query_len, dim=0, output_size=num_rows)
    return QueryRows(
        request_ids=torch.where(is_row, requests, -1).to(torch.int32),
        context_lens=torch.where(is_row, batch.positions + 1, 0).to(torch.int32),
        block_tables=tables,
    )


def _flattened_rows(batch: ModelBatch, *, with_block_tables: bool) -> QueryRows:
    """Rows from lengths on the device; block tables only where each row needs its own."""
    num_rows, device = len(batch.positions), batch.positions.device

    def made(*shape: int) -> torch.Tensor:
        # Uninitialised: all that is read of it is written.
        return torch.empty(shape, dtype=torch.int32, device=device)

    max_blocks = batch.block_tables.shape[1]
    tables = made(num_rows, max_blocks) if with_block_tables else None
    return flatten_rows(
        batch.query_start_loc,
        batch.context_lens,
        batch.block_tables,
        num_rows=num_rows,
        with_block_tables=with_block_tables,
        out=QueryRows(made(num_rows), made(num_rows), tables),
    )
