"""Device code of `attention_order`: a rank per request, by comparison with all others."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specsched_kernels.triton.attention_plan import AttentionPlan

__all__ = ["attention_order"]

_BLOCK = 16
_BLOCK_OTHERS = 256


def attention_order(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    max_query_len: int,
    max_context_tokens: int,
) -> torch.Tensor | None:
    """See `specsched_kernels.paged_attention.attention_order`."""
    num_requests = context_lens.shape[0]
    plan = AttentionPlan.of(query, key_cache, num_requests, max_query_len, max_context_tokens)
    if not plan.has_one_tile or num_requests == 0:
        return None
    order = torch.empty(num_requests, dtype=torch.int32, device=query.device)
    _order_kernel[(triton.cdiv(num_requests, _BLOCK),)](
        context_lens,
        order,
        num_requests,
        plan.chunk_tokens,
        BLOCK=_BLOCK,
        BLOCK_OTHERS=_BLOCK_OTHERS,
    )
    return order


@triton.jit(do_not_specialize=["num_requests", "chunk_tokens"])
def _order_kernel(
    context_len_ptr,
    order_ptr,
    num_requests,
    chunk_tokens,
    BLOCK: tl.constexpr,
    BLOCK_OTHERS: tl.constexpr,
):
    request = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    length = _last_piece(context_len_ptr, request, num_requests, chunk_tokens)
    rank = tl.zeros([BLOCK], tl.int32)
    for start in range(0, num_requests, BLOCK_OTHERS):
        other = start + tl.arange(0, BLOCK_OTHERS)
        other_length = _last_piece(context_len_ptr, other, num_requests, chunk_tokens)
        is_longer = other_length[None, :] > length[:, None]
        is_earlier = (other_length[None, :] == length[:, None]) & (
            other[None, :] < request[:, None]
        )
        rank += tl.sum((is_longer | is_earlier).to(tl.int32), axis=1)
    tl.store(order_ptr + rank, request, mask=request < num_requests)


@triton.jit
def _last_piece(context_len_ptr, request, num_requests, chunk_tokens):
    """Tokens of a context's last chunk; 0 of none, less past the last request."""
    is_request = request < num_requests
    context_len = tl.load(context_len_ptr + request, mask=is_request, other=0).to(tl.int32)
    length = tl.where(context_len > 0, (context_len - 1) % chunk_tokens + 1, 0)
    return tl.where(is_request, length, -1)
