"""The rows that follow from verify lengths: prefix sums, row to request, positions, logits."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["load_base", "store_rows", "store_start_locs"]


@triton.jit
def load_base(base_ptr, samples_ptr, request, mask):
    """Base rows (int32) of each request and whether it samples; without rows it does not."""
    base = mask.to(tl.int32)
    if base_ptr is not None:
        base = tl.maximum(tl.load(base_ptr + request, mask=mask, other=0), 0)
    samples = base > 0
    if samples_ptr is not None:
        samples = samples & (tl.load(samples_ptr + request, mask=mask, other=0) != 0)
    return base, samples


@triton.jit
def store_start_locs(query_loc_ptr, logit_loc_ptr, request, live, base, verify_len, samples):
    """Both prefix sums in one scan, the logits in the upper half of an int64."""
    num_logits = tl.where(samples, verify_len + 1, 0)
    packed = (base + verify_len).to(tl.int64) + (num_logits.to(tl.int64) << 32)
    ends = tl.cumsum(packed, axis=0)
    is_first = request == 0
    tl.store(query_loc_ptr + request, tl.zeros_like(request), mask=is_first)
    tl.store(logit_loc_ptr + request, tl.zeros_like(request), mask=is_first)
    tl.store(query_loc_ptr + request + 1, (ends & 0xFFFFFFFF).to(tl.int32), mask=live)
    tl.store(logit_loc_ptr + request + 1, (ends >> 32).to(tl.int32), mask=live)


@triton.jit
def store_rows(
    row,
    num_rows,
    query_loc_ptr,
    logit_loc_ptr,
    base_ptr,
    samples_ptr,
    start_ptr,
    row_to_request_ptr,
    row_position_ptr,
    logit_row_ptr,
    num_requests,
    padded_rows,
    padded_logits,
    LOG_BLOCK_REQUESTS: tl.constexpr,
):
    """Find the request of each row by bisection and store what follows from it."""
    is_row = (row < num_rows) & (row < padded_rows)
    low = tl.zeros_like(row)
    high = low + num_requests
    for _ in tl.static_range(LOG_BLOCK_REQUESTS):
        middle = (low + high) // 2
        is_past = tl.load(query_loc_ptr + middle, mask=is_row, other=0) <= row
        low = tl.where(is_past, middle, low)
        high = tl.where(is_past, high, middle)
    offset = row - tl.load(query_loc_ptr + low, mask=is_row, other=0)
    start = tl.load(start_ptr + low, mask=is_row, other=0)
    in_buffer = row < padded_rows
    tl.store(row_to_request_ptr + row, tl.where(is_row, low, -1), mask=in_buffer)
    tl.store(row_position_ptr + row, tl.where(is_row, start + offset, 0), mask=in_buffer)
    base, samples = load_base(base_ptr, samples_ptr, low, is_row)
    from_anchor = offset - (base - 1)
    logit = tl.load(logit_loc_ptr + low, mask=is_row, other=0) + from_anchor
    has_logit = is_row & samples & (from_anchor >= 0) & (logit < padded_logits)
    tl.store(logit_row_ptr + logit, row.to(tl.int64), mask=has_logit)
