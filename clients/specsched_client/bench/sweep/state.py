"""The repeats that a sweep has finished, on disk.

A text file: the sweep's identity in the first line, then a JSON object for every finished repeat.
It is empty until the first repeat is finished.
A line that was cut short, by a full disk or a kill, is dropped when the file is opened again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from pydantic import TypeAdapter, ValidationError

from specsched_client._errors import InvalidRequestError
from specsched_client.bench.load import ClosedLoop
from specsched_client.bench.summary import RoundResult
from specsched_client.bench.validation import first_error

from .race import PAIR

__all__ = ["FinishedRepeat", "SweepState"]

_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class FinishedRepeat:
    """One round of every setting that was still in the race, under one load.

    num_requests: that the rounds had, or the one that got furthest.
    """

    load: ClosedLoop
    repeat: int
    rounds: Mapping[str, RoundResult]
    num_requests: int


_REPEAT: Final = TypeAdapter(FinishedRepeat)


class SweepState:
    """Belongs to one process at a time."""

    def __init__(
        self, file: IO[bytes], header: Mapping[str, Any], repeats: list[FinishedRepeat]
    ) -> None:
        self._file = file
        self._header = header
        self._repeats = repeats

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, path: Path, identity: Mapping[str, Any], names: Sequence[str]
    ) -> Iterator[SweepState]:
        """Begin a sweep of the variants `names`, the schedule last, or go on with it.

        Raises InvalidRequestError, and leaves the file as it is, for one that is not of this sweep
        or in which repeats are missing or doubled.
        """
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
            # Through JSON, so that tuples are what they come back as.
            header = json.loads(json.dumps({"format": _FORMAT, **identity}))
            yield cls(file, header, _read(file, path, header, names))

    @property
    def num_repeats(self) -> int:
        """Finished ones of all loads."""
        return len(self._repeats)

    def repeats(self, load: ClosedLoop) -> list[FinishedRepeat]:
        """Those of a load, in order."""
        return [each for each in self._repeats if each.load == load]

    def add(self, repeat: FinishedRepeat) -> None:
        """Keep a repeat; on disk when this returns."""
        if not self._repeats and self._file.tell() == 0:
            _write(self._file, json.dumps(self._header).encode())
        _write(self._file, _REPEAT.dump_json(repeat))
        self._repeats.append(repeat)


def _read(
    file: IO[bytes], path: Path, header: Mapping[str, Any], names: Sequence[str]
) -> list[FinishedRepeat]:
    file.seek(0)
    *lines, torn = file.read().split(b"\n")
    if not (lines or torn):
        return []
    if not lines:
        raise InvalidRequestError(f"{path}: it holds no sweep; accepted: another folder")
    _require_same(path, _parse_header(path, lines[0]), header)
    repeats: list[FinishedRepeat] = []
    for number, line in enumerate(lines[1:], start=2):
        repeats.append(_parse_repeat(f"{path}, line {number}", line, repeats, names))
    file.truncate(file.tell() - len(torn))
    return repeats


def _parse_header(path: Path, line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise InvalidRequestError(f"{path}: it holds no sweep: {error}") from error


def _parse_repeat(
    place: str, line: bytes, before: Sequence[FinishedRepeat], names: Sequence[str]
) -> FinishedRepeat:
    try:
        found = _REPEAT.validate_json(line)
    except ValidationError as error:
        raise InvalidRequestError(f"{place}: no finished repeat: {first_error(error)}") from error
    earlier = [each for each in before if each.load == found.load]
    due = len(earlier)
    for repeat in (found.repeat, *(one.repeat for one in found.rounds.values())):
        if repeat != due:
            raise InvalidRequestError(
                f"{place}: repeat {repeat} of {found.load}; accepted: {due}, each once and in order"
            )
    _require_names(place, found, earlier[-1].rounds if earlier else names, names[-1])
    for name, one in found.rounds.items():
        if not _is_measured(one):
            raise InvalidRequestError(f"{place}: the round of {name} has no finite speed above 0")
    return found


def _require_names(
    place: str, found: FinishedRepeat, before: Collection[str], scheduled: str
) -> None:
    """Settings leave the race between pairs of repeats, and never come back."""
    present = found.rounds.keys()
    may_leave = found.repeat > 0 and found.repeat % PAIR == 0
    missing = set(before) - present if not may_leave else {scheduled} - present
    if missing or not present <= set(before):
        raise InvalidRequestError(
            f"{place}: rounds of {', '.join(present) or 'none'}; accepted: one of each of"
            f" {', '.join(before)}"
        )


def _is_measured(one: RoundResult) -> bool:
    times = [time for record in one.records for time in (record.start_s, record.end_s)]
    if one.window is not None:  # in which no request has to end
        times += [one.window.start_s, one.window.end_s]
    return (
        bool(times)
        and all(map(math.isfinite, times))
        and one.elapsed_s > 0
        and one.num_output_tokens > 0
    )


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
