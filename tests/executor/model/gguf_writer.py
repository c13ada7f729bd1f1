"""A minimal GGUF writer, independent of the reader under test."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8


def quantize_q8_0(weights: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Encoded blocks of 32, and the values they stand for."""
    blocks = weights.reshape(-1, 32)
    scales = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    quants = np.round(blocks / np.maximum(scales.astype(np.float32), 1e-8)).astype(np.int8)
    encoded = b"".join(s.tobytes() + q.tobytes() for s, q in zip(scales, quants, strict=True))
    return encoded, (quants * scales.astype(np.float32)).reshape(weights.shape)


def quantize_q4_1(weights: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Encoded blocks of 32: scale, minimum, 16 bytes of which the low nibbles come first."""
    blocks = weights.reshape(-1, 32)
    low = blocks.min(axis=1, keepdims=True).astype(np.float16)
    span = (blocks.max(axis=1, keepdims=True) - low) / 15
    scales = np.maximum(span, 1e-4).astype(np.float16)
    offset = blocks - low.astype(np.float32)
    quants = np.clip(np.round(offset / scales.astype(np.float32)), 0, 15).astype(np.uint8)
    packed = quants[:, :16] | (quants[:, 16:] << 4)
    encoded = b"".join(
        s.tobytes() + m.tobytes() + q.tobytes() for s, m, q in zip(scales, low, packed, strict=True)
    )
    values = quants * scales.astype(np.float32) + low.astype(np.float32)
    return encoded, values.reshape(weights.shape).astype(np.float32)


def encode(weights: np.ndarray, kind: int) -> tuple[bytes, np.ndarray]:
    if kind == Q8_0:
        return quantize_q8_0(weights)
    if kind == Q4_1:
        return quantize_q4_1(weights)
    stored = weights.astype(np.float16 if kind == F16 else np.float32)
    return stored.tobytes(), stored.astype(np.float32)


def write_gguf(
    path: Path,
    metadata: dict[str, Any],
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]],
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
) -> None:
    """tensors: name -> (shape as torch has it, type id, encoded data)."""
    header = magic + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        header += _string(key) + _value(value)
    offset, data = 0, b""
    for name, (shape, kind, encoded) in tensors.items():
        header += _string(name) + struct.pack("<I", len(shape))
        header += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        header += struct.pack("<IQ", kind, offset)
        padded = encoded + bytes(-len(encoded) % 32)
        data += padded
        offset += len(padded)
    path.write_bytes(header + bytes(-len(header) % 32) + data)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if value and isinstance(value[0], int):
        return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_string(text) for text in value)
