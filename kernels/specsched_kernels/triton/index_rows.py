"""Device code of `index_rows`: tiles of keys, or of the heads of one row, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["quantize_index_queries", "store_index_keys"]

_BLOCK_KEYS = 16
_MAX_BLOCK_HEADS = 32
_SMALLEST_PEAK = tl.constexpr(1e-4)


def store_index_keys(
    keys: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin: torch.Tensor,
    key_cache: torch.Tensor,
) -> None:
    """See `specsched_kernels.index_rows.store_index_keys`."""
    num_rows, width = keys.shape
    if num_rows == 0:
        return
    flat = key_cache.view(-1)
    _store_index_keys_kernel[(triton.cdiv(num_rows, _BLOCK_KEYS),)](
        keys,
        norm_weight,
        norm_bias,
        positions,
        slot_mapping,
        cos_sin,
        flat.view(torch.float8_e4m3fn),
        flat.view(torch.float32),
        eps,
        num_rows,
        keys.stride(0),
        WIDTH=width,
        ROTARY=cos_sin.shape[1],
        BLOCK_SIZE=key_cache.shape[1],
        BLOCK_ROWS=_BLOCK_KEYS,
    )


def quantize_index_queries(
    queries: torch.Tensor,
    head_weights: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    weight_scale: float,
    values: torch.Tensor,
    scaled_weights: torch.Tensor,
) -> None:
    """Fill the last two, see `specsched_kernels.index_rows.quantize_index_queries`."""
    num_rows, num_heads, width = queries.shape
    if num_rows == 0:
        return
    block_heads = max(min(triton.next_power_of_2(num_heads), _MAX_BLOCK_HEADS), 16)
    _quantize_index_queries_kernel[(num_rows, triton.cdiv(num_heads, block_heads))](
        queries,
        head_weights,
        positions,
        cos_sin,
        values,
        scaled_weights,
        weight_scale,
        queries.stride(0),
        head_weights.stride(0),
        NUM_HEADS=num_heads,
        WIDTH=width,
        ROTARY=cos_sin.shape[1],
        BLOCK_HEADS=block_heads,
    )


@triton.jit(do_not_specialize=["num_rows"])
def _store_index_keys_kernel(
    key_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    position_ptr,
    slot_ptr,
    cos_sin_ptr,
    value_ptr,
    scale_ptr,
    eps,
    num_rows,
    key_stride,
    WIDTH: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    slot = tl.load(slot_ptr + row, mask=row < num_rows, other=-1)
    is_row = slot >= 0
    row_ptr = (key_ptr + row.to(tl.int64) * key_stride)[:, None]
    whole = row_ptr + tl.arange(0, WIDTH)[None, :]
    key = tl.load(whole, mask=is_row[:, None], other=0.0).to(tl.float32)
    mean = (tl.sum(key, axis=1) / WIDTH)[:, None]
    deviation = tl.rsqrt(tl.sum((key - mean) * (key - mean), axis=1) / WIDTH + eps)[:, None]
    position = tl.load(position_ptr + row, mask=is_row, other=0)
    angle_ptr = (cos_sin_ptr + position * ROTARY)[:, None]
    dim = tl.arange(0, WIDTH // 2)
    pointers = (row_ptr, norm_weight_ptr, norm_bias_ptr, angle_ptr)
    first = _rotated_keys(pointers, dim, mean, deviation, is_row[:, None], ROTARY)
    second = _rotated_keys(pointers, WIDTH // 2 + dim, mean, deviation, is_row[:, None], ROTARY)
    first, second, scale = _quantized(first, second, WIDTH)
    block = slot // BLOCK_SIZE
    place = slot % BLOCK_SIZE
    start = block * (BLOCK_SIZE * (WIDTH + 4)) + place * WIDTH
    _store_halves(value_ptr + start[:, None], first, second, is_row[:, None], WIDTH)
    # A block in floats: WIDTH / 4 of values, then 1 of scale, for each of its tokens.
    at = block * (BLOCK_SIZE * (WIDTH // 4 + 1)) + BLOCK_SIZE * (WIDTH // 4) + place
    tl.store(scale_ptr + at, scale, mask=is_row)


@triton.jit
def _quantize_index_queries_kernel(
    query_ptr,
    weight_ptr,
    position_ptr,
    cos_sin_ptr,
    value_ptr,
    scaled_weight_ptr,
    weight_scale,
    query_stride,
    weight_stride,
    NUM_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    is_head = head < NUM_HEADS
    head_ptr = (query_ptr + row * query_stride + head * WIDTH)[:, None]
    angle_ptr = (cos_sin_ptr + tl.load(position_ptr + row) * ROTARY)[None, None]
    dim = tl.arange(0, WIDTH // 2)
    first = _rotated_queries(head_ptr, angle_ptr, dim, is_head[:, None], ROTARY)
    second = _rotated_queries(head_ptr, angle_ptr, WIDTH // 2 + dim, is_head[:, None], ROTARY)
    first, second, scale = _quantized(first, second, WIDTH)
    at = row * NUM_HEADS + head
    _store_halves(value_ptr + (at * WIDTH)[:, None], first, second, is_head[:, None], WIDTH)
    weight = tl.load(weight_ptr + row * weight_stride + head, mask=is_head, other=0.0)
    scaled = weight.to(tl.float32) * (weight_scale * scale)
    tl.store(scaled_weight_ptr + at, scaled, mask=is_head)


@triton.jit
def _rotated_keys(pointers, dim, mean, deviation, mask, ROTARY: tl.constexpr):
    """Some dimensions of keys after layer norm and rotary embedding."""
    row_ptr, weight_ptr, bias_ptr, angle_ptr = pointers
    partner, cos, sin = _rotation_of(dim, angle_ptr, ROTARY)
    own = tl.load(row_ptr + dim[None, :], mask=mask, other=0.0).to(tl.float32)
    own = _affine((own - mean) * deviation, weight_ptr + dim, bias_ptr + dim)
    other = tl.load(row_ptr + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    other = _affine((other - mean) * deviation, weight_ptr + partner, bias_ptr + partner)
    return own * cos + other * sin


@triton.jit
def _rotated_queries(head_ptr, angle_ptr, dim, mask, ROTARY: tl.constexpr):
    """Some dimensions of queries after rotary embedding."""
    partner, cos, sin = _rotation_of(dim, angle_ptr, ROTARY)
    own = tl.load(head_ptr + dim[None, :], mask=mask, other=0.0).to(tl.float32)
    other = tl.load(head_ptr + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    return own * cos + other * sin


@triton.jit
def _rotation_of(dim, angle_ptr, ROTARY: tl.constexpr):
    """The dimension that each one is rotated with, and the factors of itself and of that one."""
    HALF: tl.constexpr = ROTARY // 2
    is_rotary = dim < ROTARY
    is_first = dim < HALF
    partner = tl.where(is_first, dim + HALF, tl.where(is_rotary, dim - HALF, dim))
    cos_ptr = angle_ptr + (dim % HALF)[None, :]
    cos = tl.load(cos_ptr, mask=is_rotary[None, :], other=1.0)
    sin = tl.load(cos_ptr + HALF, mask=is_rotary[None, :], other=0.0)
    return partner, cos, tl.where(is_first[None, :], -sin, sin)


@triton.jit
def _affine(x, weight_ptr, bias_ptr):
    return x * tl.load(weight_ptr)[None, :] + tl.load(bias_ptr)[None, :]


@triton.jit
def _quantized(first, second, WIDTH: tl.constexpr):
    """e4m3 of both halves of rows after the Hadamard rotation, and the scales of the rows.

    The matrix of WIDTH is [[M, M], [M, -M]] of that of half the width.
    """
    HALF: tl.constexpr = WIDTH // 2
    common = tl.arange(0, HALF)[:, None] & tl.arange(0, HALF)[None, :]
    # Sylvester's matrix is -1 where row and column have an odd number of bits in common.
    common ^= common >> 4
    common ^= common >> 2
    common ^= common >> 1
    matrix = (1 - 2 * (common & 1)).to(tl.float32)
    total = tl.dot(first + second, matrix, input_precision="tf32x3") * WIDTH**-0.5
    difference = tl.dot(first - second, matrix, input_precision="tf32x3") * WIDTH**-0.5
    largest = tl.maximum(tl.abs(total), tl.abs(difference))
    peak = tl.maximum(tl.max(largest, axis=1), _SMALLEST_PEAK)
    # The least power of two with peak <= 448 * scale; 448 is 1.75 * 2^8.
    bits = peak.to(tl.int32, bitcast=True) + (0x7FFFFF - 0x600000)
    exponent = (bits >> 23) - 8
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)[:, None]
    return (total * inverse).to(tl.float8e4nv), (difference * inverse).to(tl.float8e4nv), scale


@triton.jit
def _store_halves(row_ptr, first, second, mask, WIDTH: tl.constexpr):
    at = row_ptr + tl.arange(0, WIDTH // 2)[None, :]
    tl.store(at, first, mask=mask)
    tl.store(at + WIDTH // 2, second, mask=mask)
