"""Queries and keys of the lightning indexer in plain torch; a row depends on itself alone."""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F

__all__ = ["quantize_index_queries", "store_index_keys"]

_E4M3_MAX: Final = 448.0
_SMALLEST_PEAK: Final = 1e-4


def store_index_keys(  # noqa: PLR0917 -- the order all of these kernels have
    keys: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin: torch.Tensor,
    key_cache: torch.Tensor,
) -> None:
    """See specsched_kernels.index_rows."""
    width, block_size = keys.shape[1], key_cache.shape[1]
    normed = F.layer_norm(keys.float(), (width,), norm_weight, norm_bias, eps)
    values, scales = _quantize(_rotated(normed, cos_sin[positions]))
    blocks = key_cache.view(len(key_cache), -1)
    stored_values = blocks[:, : block_size * width].view(len(blocks), block_size, width)
    stored_scales = blocks[:, block_size * width :].view(torch.float32)
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block, offset = slots // block_size, slots % block_size
    stored_values[block, offset] = values[kept].view(torch.uint8)
    stored_scales[block, offset] = scales[kept]


def quantize_index_queries(
    queries: torch.Tensor,
    head_weights: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    weight_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See specsched_kernels.index_rows."""
    values, scales = _quantize(_rotated(queries.float(), cos_sin[positions][:, None]))
    return values, head_weights.float() * (weight_scale * scales)


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x [..., D] after the rotary embedding of its first dimensions and the Hadamard rotation."""
    rotary = angles.shape[-1]
    cos, sin = angles.chunk(2, dim=-1)
    first, second = x[..., :rotary].chunk(2, dim=-1)
    x = torch.cat((first * cos - second * sin, second * cos + first * sin, x[..., rotary:]), dim=-1)
    width, shape = x.shape[-1], x.shape
    # Sums and differences at distance 1, 2, 4, ...: the natural (Sylvester) order.
    distance = 1
    while distance < width:
        pairs = x.view(*shape[:-1], -1, 2, distance)
        left, right = pairs[..., 0, :], pairs[..., 1, :]
        x = torch.stack((left + right, left - right), dim=-2).view(shape)
        distance *= 2
    return x.mul(width**-0.5)


def _quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float8_e4m3fn like x [..., D], and its scales, float32 [...], powers of two."""
    peaks = x.abs().amax(dim=-1).clamp(min=_SMALLEST_PEAK)
    mantissas, exponents = torch.frexp(peaks / _E4M3_MAX)  # a mantissa is in [0.5, 1)
    exact = mantissas == 0.5
    scales = torch.ldexp(torch.ones_like(peaks), exponents - exact.to(exponents.dtype))
    return (x / scales[..., None]).to(torch.float8_e4m3fn), scales
