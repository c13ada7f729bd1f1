"""Rotating Parquet files in one folder, bounded in their sum."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from .schema import METADATA_PREFIX, SCHEMA
from .seam import TraceConfig

__all__ = ["TraceWriter"]

_SUFFIX = ".parquet"
_UNFINISHED = ".part"
_ROWS_PER_GROUP = 512
_ABANDONED_AFTER = 60
"""Times `max_file_age_s` without a write: nobody is going to end such a file any more."""


class TraceWriter:
    """One attachment's files. One thread. Raises OSError where the folder cannot be written.

    A file that is being written has another suffix: it is none of a reader's business. It is ended
    by its size, or `max_file_age_s` after its first step. name: that of no other writer. clock:
    seconds, monotonic. num_ended: files that can be read. After an OSError or ValueError, `abandon`
    before anything else.
    """

    def __init__(
        self, config: TraceConfig, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._name = name
        self._clock = clock
        self._metadata: Mapping[str, str] = {}
        self._rows: list[Mapping[str, Any]] = []
        self._due_s: float | None = None
        self._writer: pq.ParquetWriter | None = None
        self._path = config.directory
        self._num_files = 0
        self._num_steps = 0
        self.num_ended = 0

    def describe(self, metadata: Mapping[str, str]) -> None:
        """What the files written from now on say of themselves; begins a new one."""
        if metadata != self._metadata:
            try:
                self.close()
            finally:
                self._metadata = dict(metadata)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append steps."""
        if rows and self._due_s is None:
            self._due_s = self._clock() + self._config.max_file_age_s
        self._rows += rows
        self._num_steps += len(rows)
        if len(self._rows) >= _ROWS_PER_GROUP:
            self._write_group()
            if self._path.stat().st_size >= self._config.max_file_bytes:
                self.close()
        self.close_if_due()

    @property
    def due_in_s(self) -> float | None:
        """Seconds until `close_if_due` has something to do, at least 0; None: nothing waits."""
        return None if self._due_s is None else max(0.0, self._due_s - self._clock())

    def close_if_due(self) -> None:
        """End the file whose first step has waited long enough."""
        if self.due_in_s == 0.0:
            self.close()

    def close(self) -> None:
        """End the file that is being written, so that it can be read."""
        if self._rows:
            self._write_group()
        self._due_s = None
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        self._path.rename(self._path.with_suffix(""))
        self._num_steps = 0
        self.num_ended += 1
        self._make_room()

    def abandon(self) -> int:
        """Remove the file that could not be written, begin anew; the number of steps it had."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError, ValueError):
                writer.close()
        if self._num_files:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        num_steps, self._num_steps = self._num_steps, 0
        self._rows, self._due_s = [], None
        return num_steps

    def _write_group(self) -> None:
        if self._writer is None:
            self._writer = self._begin()
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema()))
        self._rows = []

    def _schema(self) -> pa.Schema:
        return SCHEMA.with_metadata(
            {METADATA_PREFIX + key: value for key, value in self._metadata.items()}
        )

    def _begin(self) -> pq.ParquetWriter:
        self._num_files += 1
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{stamp}-{self._name}-{self._num_files:05}{_SUFFIX}{_UNFINISHED}"
        self._path = self._config.directory / name
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path.touch(mode=0o600)
        return pq.ParquetWriter(self._path, self._schema(), compression="zstd")

    def _make_room(self) -> None:
        """Remove the oldest files while all are too large; other writers may do the same."""
        files = sorted(_found(self._config.directory))
        total = sum(each.num_bytes for each in files)
        abandoned_s = time.time() - _ABANDONED_AFTER * self._config.max_file_age_s
        for each in files:
            if total <= self._config.max_bytes - self._config.max_file_bytes:
                return
            if each.path.suffix == _SUFFIX or each.written_s < abandoned_s:
                each.path.unlink(missing_ok=True)
                total -= each.num_bytes


class _Found(NamedTuple):
    """A file of the folder, ended or not. written_s: Unix time of the last write."""

    written_s: float
    path: Path
    num_bytes: int


def _found(directory: Path) -> Iterator[_Found]:
    for pattern in (f"*{_SUFFIX}", f"*{_SUFFIX}{_UNFINISHED}"):
        for path in directory.glob(pattern):
            with contextlib.suppress(FileNotFoundError):  # ended, or removed, meanwhile
                status = path.stat()
                yield _Found(status.st_mtime, path, status.st_size)
