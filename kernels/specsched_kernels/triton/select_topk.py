"""Device code of `select_topk`: a radix selection, eight bits a pass over the row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specsched_kernels.triton.vocabulary import order_key

__all__ = ["select_topk"]

_DIGIT_BITS = tl.constexpr(8)
_NUM_DIGITS = tl.constexpr(256)
_SIGN_BIT = tl.constexpr(0x80000000)
_BLOCK_COLUMNS = 2048
_LONG_BLOCK_COLUMNS = 8192
_MANY_ROWS = 256


def select_topk(logits: torch.Tensor, context_lens: torch.Tensor, out: torch.Tensor) -> None:
    """Fill `out`, see `specsched_kernels.select_topk`."""
    num_rows, num_columns = logits.shape
    if num_rows == 0:
        return
    block = _BLOCK_COLUMNS if num_rows >= _MANY_ROWS else _LONG_BLOCK_COLUMNS
    block = min(block, max(triton.next_power_of_2(num_columns), 256))
    _select_kernel[(num_rows,)](
        logits,
        context_lens,
        out,
        num_columns,
        logits.stride(0),
        out.shape[1],
        BLOCK_COLUMNS=block,
        num_warps=min(max(block // 512, 4), 16),
    )


@triton.jit(do_not_specialize=["num_columns"])
def _select_kernel(
    logit_ptr,
    context_len_ptr,
    out_ptr,
    num_columns,
    logit_stride,
    k,
    BLOCK_COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    num_tokens = tl.minimum(tl.load(context_len_ptr + row), num_columns)
    row_ptr = logit_ptr + row * logit_stride
    out_ptr += row * k
    lane = tl.arange(0, BLOCK_COLUMNS)
    nothing = tl.full([BLOCK_COLUMNS], -1, tl.int32)
    num_selected = tl.minimum(tl.maximum(num_tokens, 0), k)
    if num_tokens <= k:
        for start in range(0, num_selected, BLOCK_COLUMNS):
            tl.store(out_ptr + start + lane, start + lane, mask=start + lane < num_selected)
    else:
        cut, num_at_cut = _find_cut(row_ptr, num_tokens, k, BLOCK_COLUMNS)
        num_before = 0
        num_equal = 0
        for start in range(0, num_tokens, BLOCK_COLUMNS):
            key = _keys_of(row_ptr, start + lane, num_tokens)
            is_equal = (key == cut).to(tl.int32)
            rank = num_equal + tl.cumsum(is_equal, axis=0)
            is_taken = (key > cut) | ((is_equal != 0) & (rank <= num_at_cut))
            taken = is_taken.to(tl.int32)
            place = num_before + tl.cumsum(taken, axis=0) - 1
            tl.store(out_ptr + place, start + lane, mask=is_taken)
            num_before += tl.sum(taken, axis=0)
            num_equal += tl.sum(is_equal, axis=0)
    for start in range(num_selected, k, BLOCK_COLUMNS):
        tl.store(out_ptr + start + lane, nothing, mask=start + lane < k)


@triton.jit
def _keys_of(row_ptr, column, num_tokens):
    """uint32 that order as the logits do, NaN as -inf; 0 past the context, which no logit has."""
    logit = tl.load(row_ptr + column, mask=column < num_tokens, other=float("-inf"))
    logit = tl.where(logit == logit, logit, float("-inf"))
    key = order_key(logit).to(tl.uint32, bitcast=True) ^ _SIGN_BIT
    return tl.where(column < num_tokens, key, 0)


@triton.jit
def _find_cut(row_ptr, num_tokens, k, BLOCK_COLUMNS: tl.constexpr):
    """A key and a number of it: the k largest are those above it and this many equal to it.

    A pass counts the tokens that begin like the cut by their next digit, and so finds the cut's
    next one. It is done when all of them are wanted, or none of their bits is left.
    """
    value = tl.arange(0, _NUM_DIGITS)
    lane = tl.arange(0, BLOCK_COLUMNS)
    prefix = tl.full([], 0, tl.uint32)
    shift = tl.full([], 32, tl.int32)
    num_alike = num_tokens
    wanted = k
    while (shift > 0) & (num_alike > wanted):
        shift -= _DIGIT_BITS
        counts = tl.zeros([_NUM_DIGITS], tl.int32)
        for start in range(0, num_tokens, BLOCK_COLUMNS):
            key = _keys_of(row_ptr, start + lane, num_tokens) >> shift.to(tl.uint32)
            is_alike = (start + lane < num_tokens) & ((key >> _DIGIT_BITS) == prefix)
            digit = (key & (_NUM_DIGITS - 1)).to(tl.int32)
            counts += tl.histogram(digit, _NUM_DIGITS, mask=is_alike)
        num_above = num_alike - tl.cumsum(counts, axis=0)
        is_next = (num_above < wanted) & (num_above + counts >= wanted)
        next_digit = tl.sum(tl.where(is_next, value, 0), axis=0)
        num_alike = tl.sum(tl.where(is_next, counts, 0), axis=0)
        wanted -= tl.sum(tl.where(is_next, num_above, 0), axis=0)
        prefix = (prefix << _DIGIT_BITS) | next_digit.to(tl.uint32)
    return prefix << shift.to(tl.uint32), wanted
