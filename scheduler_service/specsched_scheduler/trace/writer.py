"""Rotating Parquet files in one folder, bounded in their sum."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .schema import METADATA_PREFIX, SCHEMA
from .seam import TraceConfig

__all__ = ["TraceWriter"]

_SUFFIX = ".parquet"
_UNFINISHED = ".part"


class TraceWriter:
    """One attachment's files. One thread. Raises OSError where the folder cannot be written.

    A file that is being written has another suffix: it is none of a reader's business.
    """

    def __init__(self, config: TraceConfig, name: str) -> None:
        self._config = config
        self._name = name
        self._metadata: Mapping[str, str] = {}
        self._writer: pq.ParquetWriter | None = None
        self._path = config.directory
        self._num_files = 0
        config.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def describe(self, metadata: Mapping[str, str]) -> None:
        """What the files written from now on say of themselves; begins a new one."""
        if metadata != self._metadata:
            self.close()
            self._metadata = dict(metadata)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append steps; one row group."""
        if not rows:
            return
        if self._writer is None:
            self._writer = self._begin()
        self._writer.write_table(pa.Table.from_pylist(list(rows), schema=self._schema()))
        if self._path.stat().st_size >= self._config.max_file_bytes:
            self.close()

    def close(self) -> None:
        """End the file that is being written, so that it can be read."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        self._path.rename(self._path.with_suffix(""))
        self._make_room()

    def _schema(self) -> pa.Schema:
        return SCHEMA.with_metadata(
            {METADATA_PREFIX + key: value for key, value in self._metadata.items()}
        )

    def _begin(self) -> pq.ParquetWriter:
        self._num_files += 1
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{stamp}-{self._name}-{self._num_files:05}{_SUFFIX}{_UNFINISHED}"
        self._path = self._config.directory / name
        return pq.ParquetWriter(self._path, self._schema(), compression="zstd")

    def _make_room(self) -> None:
        files = sorted(self._config.directory.glob(f"*{_SUFFIX}"), key=_age)
        total = sum(file.stat().st_size for file in files)
        while files and total > self._config.max_bytes - self._config.max_file_bytes:
            oldest = files.pop(0)
            total -= oldest.stat().st_size
            oldest.unlink(missing_ok=True)


def _age(path: Path) -> tuple[int, str]:
    try:
        return os.stat(path).st_mtime_ns, path.name
    except FileNotFoundError:
        return 0, path.name
