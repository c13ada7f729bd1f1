"""Device code of `select_topk`: a cut found by counting, then one pass that writes positions."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specsched_kernels.triton.vocabulary import LOWEST_KEY, order_key

__all__ = ["select_topk"]

_NUM_PIVOTS = tl.constexpr(7)
_NUM_WARPS = 8
_NUM_WARPS_OF_FEW = 16
_FEW_ROWS = 64
_COUNTED_PER_WARP = 128
_WRITTEN_PER_WARP = 512


def select_topk(logits: torch.Tensor, context_lens: torch.Tensor, out: torch.Tensor) -> None:
    """Fill `out`, see `specsched_kernels.select_topk`."""
    num_rows, num_columns = logits.shape
    if num_rows == 0:
        return
    num_warps = _NUM_WARPS_OF_FEW if num_rows <= _FEW_ROWS else _NUM_WARPS
    _select_kernel[(num_rows,)](
        logits,
        context_lens,
        out,
        num_columns,
        logits.stride(0),
        out.shape[1],
        BLOCK_COUNTED=num_warps * _COUNTED_PER_WARP,
        BLOCK_WRITTEN=num_warps * _WRITTEN_PER_WARP,
        num_warps=num_warps,
    )


@triton.jit(do_not_specialize=["num_columns"])
def _select_kernel(
    logit_ptr,
    context_len_ptr,
    out_ptr,
    num_columns,
    logit_stride,
    k,
    BLOCK_COUNTED: tl.constexpr,
    BLOCK_WRITTEN: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    num_tokens = tl.minimum(tl.load(context_len_ptr + row), num_columns)
    row_ptr = logit_ptr + row * logit_stride
    out_ptr += row * k
    lane = tl.arange(0, BLOCK_WRITTEN)
    nothing = tl.full([BLOCK_WRITTEN], -1, tl.int32)
    num_selected = tl.minimum(tl.maximum(num_tokens, 0), k)
    if num_tokens <= k:
        for start in range(0, num_selected, BLOCK_WRITTEN):
            tl.store(out_ptr + start + lane, start + lane, mask=start + lane < num_selected)
    else:
        cut, num_wanted = _find_cut(row_ptr, num_tokens, k, BLOCK_COUNTED)
        num_above = 0
        num_equal = 0
        for start in range(0, num_tokens, BLOCK_WRITTEN):
            key = _keys_of(row_ptr, start + lane, num_tokens)
            is_above = key > cut
            is_equal = key == cut
            # Both counts in one sum, which a block cannot overflow.
            ones = is_above.to(tl.int32) | (is_equal.to(tl.int32) << 16)
            before = tl.cumsum(ones, axis=0) - ones
            above_before = num_above + (before & 0xFFFF)
            equal_before = num_equal + (before >> 16)
            is_taken = is_above | (is_equal & (equal_before < num_wanted))
            place = above_before + tl.minimum(equal_before, num_wanted)
            tl.store(out_ptr + place, start + lane, mask=is_taken)
            total = tl.sum(ones, axis=0)
            num_above += total & 0xFFFF
            num_equal += total >> 16
    for start in range(num_selected, k, BLOCK_WRITTEN):
        tl.store(out_ptr + start + lane, nothing, mask=start + lane < k)


@triton.jit
def _keys_of(row_ptr, column, num_tokens):
    """int32 that order as the logits do, NaN as -inf; the lowest past the context."""
    logit = tl.load(row_ptr + column, mask=column < num_tokens, other=float("nan"))
    key = order_key(tl.where(logit == logit, logit, float("-inf")))
    return tl.where(column < num_tokens, key, LOWEST_KEY)


@triton.jit
def _find_cut(row_ptr, num_tokens, k, BLOCK_COUNTED: tl.constexpr):
    """A key and a number: the k largest are those above the key and this many equal to it.

    At least k keys are at or above `low`, fewer than k at or above `high`. A pass over the row
    brings the two eight times closer; it is the last where just k keys are left at or above `low`.
    """
    low = tl.full([], LOWEST_KEY, tl.int32)
    high = tl.full([], 0x7FFFFFFF, tl.int32)
    num_at_low = num_tokens
    num_at_high = 0
    while (num_at_low > k) & (high > low + 1):
        # The distance may be more than int32 holds.
        step = tl.maximum((high >> 3) - (low >> 3), 1)
        counts = _count_above(row_ptr, low, step, num_tokens, BLOCK_COUNTED)
        start = low
        end = high
        for index in tl.static_range(_NUM_PIVOTS):
            pivot = start + (index + 1) * step
            count = tl.sum(counts[index], axis=0)
            if pivot < end:
                if count >= k:
                    low = pivot
                    num_at_low = count
                elif pivot < high:
                    high = pivot
                    num_at_high = count
    return low, k - num_at_high


@triton.jit
def _count_above(row_ptr, low, step, num_tokens, BLOCK_COUNTED: tl.constexpr):
    """Keys at or above each of seven pivots low + step, low + 2 step, ..., by lane."""
    count = tl.zeros([BLOCK_COUNTED], tl.int32)
    counts = (count, count, count, count, count, count, count)
    for start in tl.range(0, num_tokens, BLOCK_COUNTED, loop_unroll_factor=4):
        key = _keys_of(row_ptr, start + tl.arange(0, BLOCK_COUNTED), num_tokens)
        counts = _add(counts, key, low, step)
    return counts


@triton.jit
def _add(counts, key, low, step):
    new_counts = ()
    for index in tl.static_range(_NUM_PIVOTS):
        is_above = key >= low + (index + 1) * step
        new_counts = new_counts + (counts[index] + is_above.to(tl.int32),)
    return new_counts
