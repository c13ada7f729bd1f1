"""The repeats that a sweep has finished, on disk.

A text file: the sweep's identity in the first line, then a JSON object for every finished repeat.
A line that was cut short, by a full disk or a kill, is dropped when the file is opened again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from pydantic import TypeAdapter, ValidationError

from specsched_client._errors import InvalidRequestError
from specsched_client.bench.load import ClosedLoop
from specsched_client.bench.summary import RoundResult

__all__ = ["FinishedRepeat", "SweepState"]

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class FinishedRepeat:
    """One round of every setting, under one load."""

    load: ClosedLoop
    repeat: int
    rounds: Mapping[str, RoundResult]


_REPEAT: Final = TypeAdapter(FinishedRepeat)


class SweepState:
    """Belongs to one process at a time."""

    def __init__(self, file: IO[bytes], repeats: list[FinishedRepeat]) -> None:
        self._file = file
        self._repeats = repeats

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path, identity: Mapping[str, Any]) -> Iterator[SweepState]:
        """Begin a sweep, or go on with it. Raises InvalidRequestError for another one's file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+b")
        except OSError as error:
            raise InvalidRequestError(f"{path}: {error.strerror}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidRequestError(f"{path}: another sweep is writing it") from None
            yield cls(file, _read(file, path, identity))

    @property
    def num_repeats(self) -> int:
        """Finished ones of all loads."""
        return len(self._repeats)

    def repeats(self, load: ClosedLoop) -> list[FinishedRepeat]:
        """Those of a load, in order."""
        return [each for each in self._repeats if each.load == load]

    def add(self, repeat: FinishedRepeat) -> None:
        """Keep a repeat; on disk when this returns."""
        _write(self._file, _REPEAT.dump_json(repeat))
        self._repeats.append(repeat)


def _read(file: IO[bytes], path: Path, identity: Mapping[str, Any]) -> list[FinishedRepeat]:
    file.seek(0)
    lines = file.read().split(b"\n")
    file.truncate(file.tell() - len(lines.pop()))  # what follows the last line break
    # Through JSON, so that tuples are what they come back as.
    header = json.loads(json.dumps({"format": _FORMAT, **identity}))
    if not lines:
        _write(file, json.dumps(header).encode())
        return []
    try:
        _require_same(path, json.loads(lines[0]), header)
        return [_REPEAT.validate_json(line) for line in lines[1:]]
    except (ValueError, ValidationError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        raise InvalidRequestError(f"{path}: it holds no sweep: {error}") from error


def _require_same(path: Path, found: Any, wanted: Mapping[str, Any]) -> None:
    if not isinstance(found, dict):
        raise InvalidRequestError(f"{path}: it holds no sweep")
    for name, value in wanted.items():
        if (other := found.get(name)) != value:
            raise InvalidRequestError(
                f"{path}: it holds another sweep: {name} is {other}, here {value};"
                " accepted: the same servers and settings, or another folder"
            )


def _write(file: IO[bytes], line: bytes) -> None:
    file.write(line + b"\n")
    file.flush()
    os.fsync(file.fileno())
