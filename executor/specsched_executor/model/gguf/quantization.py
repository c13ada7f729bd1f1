"""Storage types of GGUF tensors and how each becomes float32.

A quantised row is a sequence of blocks; every decoder takes uint8 [num_blocks, block_bytes] and
returns float32 [num_blocks, block_elements]. Layouts: ggml-common.h and ggml-quants.c of ggml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

Decode = Callable[[torch.Tensor], torch.Tensor]

_PIECE_ELEMENTS: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class TensorType:
    """One GGML storage type."""

    name: str
    block_elements: int
    block_bytes: int
    decode: Decode


def dequantize(kind: TensorType, raw: torch.Tensor, out: torch.Tensor) -> None:
    """uint8 [rows, bytes per row] -> out, contiguous float32 [rows, columns].

    Goes through the rows in pieces that stay in the cache: a whole matrix at once would be written
    to memory, and its pages faulted in, once per operation of the decoder.
    """
    blocks = raw.reshape(-1, kind.block_bytes)
    flat = out.view(-1, kind.block_elements)
    piece = max(1, _PIECE_ELEMENTS // kind.block_elements)
    for start in range(0, blocks.shape[0], piece):
        flat[start : start + piece] = kind.decode(blocks[start : start + piece])


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at byte `start` of each block, as float32 [num_blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 16] -> uint8 [n, 32]: all low nibbles, then all high ones."""
    return torch.cat((packed & 0xF, packed >> 4), dim=1)


def _high_bits(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 4] -> uint8 [n, 32]: bit j of the little-endian word, moved to bit 4."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (((packed[:, :, None] >> shifts) & 1) << 4).reshape(-1, 32)


def _f32(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.contiguous().view(torch.float32)


def _f16(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.contiguous().view(torch.float16).float()


def _bf16(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.contiguous().view(torch.bfloat16).float()


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    """(q - 8) * d."""
    return (_nibbles(blocks[:, 2:]).float() - 8.0).mul_(_half(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    """q * d + m."""
    return _nibbles(blocks[:, 4:]).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    """(q - 16) * d, the fifth bits apart."""
    quants = _nibbles(blocks[:, 6:]) | _high_bits(blocks[:, 2:6])
    return (quants.float() - 16.0).mul_(_half(blocks, 0))


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    """q * d + m, the fifth bits apart."""
    quants = _nibbles(blocks[:, 8:]) | _high_bits(blocks[:, 4:8])
    return quants.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    """q * d."""
    return blocks[:, 2:].contiguous().view(torch.int8).float().mul_(_half(blocks, 0))


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    """d * scale[s] * q - dmin * min[s], eight sub-blocks s of 32, 6-bit scales and mins."""
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((low & 63, (high & 0xF) | ((low >> 6) << 4)), dim=1)
    mins = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), dim=1)
    quants = blocks[:, 16:].reshape(-1, 4, 32)
    quants = torch.stack((quants & 0xF, quants >> 4), dim=2).reshape(-1, 8, 32).float()
    scale = (_half(blocks, 0) * scales.float())[:, :, None]
    minimum = (_half(blocks, 2) * mins.float())[:, :, None]
    return (quants.mul_(scale).sub_(minimum)).reshape(-1, 256)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    """d * scale[s] * (q - 32), sixteen sub-blocks s of 16, 4 low and 2 high bits apart."""
    low = blocks[:, 0:128].reshape(-1, 2, 1, 64)
    low = torch.cat((low & 0xF, low >> 4), dim=2).reshape(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    quants = (low | (high << 4)).reshape(-1, 16, 16).float() - 32.0
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    return quants.mul_((_half(blocks, 208) * scales)[:, :, None]).reshape(-1, 256)


TENSOR_TYPES: Final[dict[int, TensorType]] = {
    0: TensorType("F32", 1, 4, _f32),
    1: TensorType("F16", 1, 2, _f16),
    2: TensorType("Q4_0", 32, 18, _q4_0),
    3: TensorType("Q4_1", 32, 20, _q4_1),
    6: TensorType("Q5_0", 32, 22, _q5_0),
    7: TensorType("Q5_1", 32, 24, _q5_1),
    8: TensorType("Q8_0", 32, 34, _q8_0),
    12: TensorType("Q4_K", 256, 144, _q4_k),
    14: TensorType("Q6_K", 256, 210, _q6_k),
    30: TensorType("BF16", 1, 2, _bf16),
}
"""GGML type id -> type, for those that are read."""
