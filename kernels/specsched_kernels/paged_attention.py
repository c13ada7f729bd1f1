"""Causal attention of a ragged batch over a paged key-value cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from specsched_kernels._checks import check_cuda_layout
from specsched_kernels.cpu import paged_attention as kernel
from specsched_kernels.cpu.layout import (
    fills_vectors,
    is_cpu_float,
    stored_keys,
    stored_values,
)
from specsched_kernels.cpu.threads import num_workers
from specsched_kernels.reference import paged_attention as reference

__all__ = ["allocate_kv", "attention_order", "paged_attention", "storage_arrays"]


def allocate_kv(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Zeroed keys and values, float32 [num_blocks, block_size, num_kv_heads, head_dim] on the CPU.

    Both are views in the order the CPU kernel reads fastest: heads outside tokens, and the keys of
    a block dimension by dimension, so that a vector register holds one dimension of many tokens.
    """
    keys = torch.zeros(num_blocks, num_kv_heads, head_dim, block_size)
    values = torch.zeros(num_blocks, num_kv_heads, block_size, head_dim)
    return keys.permute(0, 3, 1, 2), values.permute(0, 2, 1, 3)


def storage_arrays(
    key_cache: torch.Tensor, value_cache: torch.Tensor
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
    """The memory of one layer's cache as the CPU kernel takes it, see cpu.layout.

    None unless it came from `allocate_kv` and its blocks and heads are whole vectors.
    """
    keys, values = stored_keys(key_cache), stored_values(value_cache)
    if keys is None or values is None or not is_cpu_float(keys, values):
        return None
    if not fills_vectors(key_cache.shape[1], key_cache.shape[3]):
        return None
    return keys.numpy(), values.numpy()


def attention_order(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    max_query_len: int | None = None,
    max_context_tokens: int,
) -> torch.Tensor | None:
    """int32 [R]: the requests of a batch in the order in which `paged_attention` best begins them.

    The longest last piece of a context first, so that no long one is left when the others are done:
    ragged batches then take no longer than even ones. Arguments as there, of any layer; layers of a
    model share it. None where the order makes no difference, on a CPU and for long queries.
    """
    if not query.is_cuda:
        return None
    from specsched_kernels.triton.attention_order import attention_order as launch

    return launch(
        query,
        key_cache,
        context_lens,
        max_query_len=max_query_len or query.shape[0],
        max_context_tokens=max_context_tokens,
    )


def paged_attention(  # noqa: PLR0917 -- the order all of these kernels have
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    out: torch.Tensor | None = None,
    max_query_len: int | None = None,
    max_context_tokens: int | None = None,
    is_causal: bool = True,
    order: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(scale * q k^T) v, each row over its request's tokens up to and including its own.

    Of all of them where it is not causal: then the rows of a request see each other.

    query: [n, H, D], rows flattened request after request. key_cache, value_cache:
    [num_blocks, block_size, Hkv, D], H a multiple of Hkv, any strides (see `allocate_kv`).
    block_tables: int32 [R, max_blocks]; entries past a request's context are not read.
    query_start_loc: int64 [R+1]. context_lens: int64 [R], tokens of each request in the cache, this
    step's rows included: its row i sits at position context_lens[r] - query_len[r] + i.
    Returns `out`, [n, H, D]; rows past query_start_loc[-1] are zero. On a CPU a row's result
    depends on its own request alone, bit for bit: not on what else is in the batch, nor on how many
    rows the request sends.

    On CUDA nothing is read back: max_query_len and max_context_tokens are upper bounds over the
    batch (by default n and what block_tables can hold) that size the launch; `order` is what
    `attention_order` says of the same arguments. The caches then have equal strides, the last two
    dimensions dense; raises ValueError for others.
    """
    if out is None:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
    if query.is_cuda:
        from specsched_kernels.triton.paged_attention import paged_attention as launch

        check_cuda_layout(key_cache, value_cache)
        launch(
            query,
            key_cache,
            value_cache,
            out,
            block_tables=block_tables,
            query_start_loc=query_start_loc,
            context_lens=context_lens,
            scale=scale,
            max_query_len=max_query_len or query.shape[0],
            max_context_tokens=max_context_tokens or block_tables.shape[1] * key_cache.shape[1],
            is_causal=is_causal,
            order=order,
        )
        return out
    storage = storage_arrays(key_cache, value_cache)
    if storage is None or not is_cpu_float(query, out):
        return reference.paged_attention(
            query,
            key_cache,
            value_cache,
            block_tables,
            query_start_loc,
            context_lens,
            scale=scale,
            out=out,
            is_causal=is_causal,
        )
    out[int(query_start_loc[-1]) :] = 0.0
    work = query.numel() * int(context_lens.max()) if context_lens.numel() else 0
    kernel.attend(
        query.contiguous().numpy(),
        *storage,
        block_tables.numpy(),
        query_start_loc.numpy(),
        context_lens.numpy(),
        np.float32(scale),
        out.numpy(),
        is_causal,
        num_workers(work),
    )
    return out
