"""Many small typed arrays in one piece of memory, so that one copy moves them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt
import torch

__all__ = ["Field", "PackedArrays", "PackedLayout"]

_ALIGNMENT_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class Field:
    """One array: its shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Without padding."""
        num_elements = 1
        for size in self.shape:
            num_elements *= size
        return num_elements * self.dtype.itemsize


class PackedLayout:
    """Where each field begins; in the order given, so that what is seldom full comes last."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = dict(fields)
        self.starts: dict[str, int] = {}
        self._row_bytes: dict[str, int] = {}
        end = 0
        for name, field in fields.items():
            self.starts[name] = end
            self._row_bytes[name] = field.num_bytes // max(field.shape[0], 1)
            end += -(-field.num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.num_bytes = max(end, _ALIGNMENT_BYTES)

    def end_of(self, name: str, num_rows: int) -> int:
        """Bytes up to and including the first `num_rows` rows of a field."""
        return self.starts[name] + num_rows * self._row_bytes[name]


class PackedArrays:
    """The fields of a layout in the memory of one device; pinned where the host shares it."""

    def __init__(self, layout: PackedLayout, device: torch.device, *, is_pinned: bool = False):
        self.layout = layout
        self.memory = torch.zeros(
            layout.num_bytes, dtype=torch.uint8, device=device, pin_memory=is_pinned
        )
        self._tensors = {name: self._view(name) for name in layout.fields}
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        if device.type == "cpu":
            self._arrays = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        self._beginnings: dict[int, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        """The whole field."""
        return self._tensors[name]

    def numpy(self, name: str) -> npt.NDArray[Any]:
        """The field as the host sees it; host memory only."""
        return self._arrays[name]

    def copy_from(self, source: PackedArrays, num_bytes: int | None = None) -> None:
        """Take the first bytes (None: all) of another piece of memory, in stream order.

        Some more may be copied: a power of two, so that there are few views to keep.
        """
        if num_bytes is None:
            self.memory.copy_(source.memory, non_blocking=True)
        else:
            size = min(1 << max(num_bytes - 1, 0).bit_length(), self.layout.num_bytes)
            self._beginning(size).copy_(source._beginning(size), non_blocking=True)

    def _beginning(self, num_bytes: int) -> torch.Tensor:
        """A view, kept: to make one takes the host longer than to have it copied."""
        view = self._beginnings.get(num_bytes)
        if view is None:
            view = self._beginnings[num_bytes] = self.memory[:num_bytes]
        return view

    def _view(self, name: str) -> torch.Tensor:
        field, start = self.layout.fields[name], self.layout.starts[name]
        piece = self.memory[start : start + field.num_bytes]
        return piece.view(field.dtype).view(field.shape)
