"""Reader of the GGUF container: metadata and the table of tensors, nothing interpreted.

Layout (little endian): magic "GGUF", version u32, number of tensors u64, number of metadata pairs
u64; the pairs; the tensor table; then, aligned to `general.alignment`, the tensor data.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from specsched_executor.model._errors import ModelFormatError, UnsupportedModelError
from specsched_executor.model.gguf.quantization import TENSOR_TYPES, TensorType

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_MAX_DIMENSIONS: Final = 4


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One row of the tensor table. shape: outermost dimension first, as torch has it."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset_bytes: int


class GgufFile:
    """An open GGUF file.

    Raises ModelFormatError for a file that is truncated or no GGUF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise ModelFormatError(f"{path}: {path.stat().st_size} bytes is no GGUF file")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._parse()
        except BaseException:
            self._map.close()
            raise

    def close(self) -> None:
        """Unmap the file. Arrays from `raw` must be gone by then."""
        self._map.close()

    def _parse(self) -> None:
        cursor = _Cursor(self._map, self.path)
        magic = cursor.bytes(4)
        if magic != _MAGIC:
            raise ModelFormatError(
                f"{self.path}: starts with {magic!r}, a GGUF file with {_MAGIC!r}"
            )
        version = cursor.scalar(4)
        if version not in _VERSIONS:
            raise UnsupportedModelError(
                f"{self.path}: GGUF version {version}; versions 2 and 3 are read (little endian)"
            )
        num_tensors, num_pairs = cursor.scalar(10), cursor.scalar(10)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar(4))
        entries = [self._read_entry(cursor) for _ in range(num_tensors)]
        self.tensors = {entry.name: entry for entry in entries}
        alignment = int(self.metadata.get("general.alignment", 32))
        if alignment <= 0:
            raise ModelFormatError(
                f"{self.path}: general.alignment is {alignment}, must be positive"
            )
        self._data_start = -(-cursor.offset // alignment) * alignment

    def _read_entry(self, cursor: _Cursor) -> TensorEntry:
        name = cursor.string()
        num_dimensions = cursor.scalar(4)
        if num_dimensions > _MAX_DIMENSIONS:
            raise ModelFormatError(f"{self.path}: tensor {name!r} has {num_dimensions} dimensions")
        shape = tuple(cursor.scalar(10) for _ in range(num_dimensions))[::-1]
        return TensorEntry(name, shape, cursor.scalar(4), cursor.scalar(10))

    def tensor_type(self, entry: TensorEntry) -> TensorType:
        """The storage type of a tensor; UnsupportedModelError names the ones that are read."""
        known = TENSOR_TYPES.get(entry.type_id)
        if known is None:
            accepted = ", ".join(kind.name for kind in TENSOR_TYPES.values())
            raise UnsupportedModelError(
                f"{self.path}: tensor {entry.name!r} has GGML type {entry.type_id}; "
                f"read: {accepted}"
            )
        return known

    def raw(self, entry: TensorEntry) -> npt.NDArray[np.uint8]:
        """uint8 [rows, bytes per row] of the mapped file; rows are all but the last dimension."""
        kind = self.tensor_type(entry)
        columns = entry.shape[-1] if entry.shape else 1
        rows = int(np.prod(entry.shape[:-1], dtype=np.int64))
        if columns % kind.block_elements:
            raise ModelFormatError(
                f"{self.path}: rows of {entry.name!r} have {columns} elements, "
                f"not a multiple of {kind.name}'s block of {kind.block_elements}"
            )
        row_bytes = columns // kind.block_elements * kind.block_bytes
        start = self._data_start + entry.offset_bytes
        if start + rows * row_bytes > len(self._map):
            raise ModelFormatError(
                f"{self.path}: truncated, {len(self._map)} bytes, but tensor {entry.name!r} "
                f"ends at {start + rows * row_bytes}"
            )
        flat = np.frombuffer(self._map, np.uint8, rows * row_bytes, start)
        return flat.reshape(rows, row_bytes)


class _Cursor:
    """Sequential reads with every length checked against the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self.offset = 0

    def bytes(self, length: int) -> bytes:
        end = self.offset + length
        if end > len(self._data):
            raise ModelFormatError(
                f"{self._path}: truncated, {len(self._data)} bytes, but the header goes on to {end}"
            )
        chunk = self._data[self.offset : end]
        self.offset = end
        return chunk

    def scalar(self, type_id: int) -> Any:
        layout = _SCALARS[type_id]
        return layout.unpack(self.bytes(layout.size))[0]

    def string(self) -> str:
        return self.bytes(self.scalar(10)).decode("utf-8", errors="replace")

    def value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self.string()
        if type_id == _ARRAY:
            return self._array()
        if type_id not in _SCALARS:
            raise ModelFormatError(f"{self._path}: metadata of unknown type {type_id}")
        return self.scalar(type_id)

    def _array(self) -> list[Any]:
        type_id, length = self.scalar(4), self.scalar(10)
        if type_id in _SCALARS:
            layout = np.dtype(_SCALARS[type_id].format)
            values: list[Any] = np.frombuffer(self.bytes(length * layout.itemsize), layout).tolist()
            return values
        if length > len(self._data):
            raise ModelFormatError(f"{self._path}: metadata array of {length} entries")
        return [self.value(type_id) for _ in range(length)]
