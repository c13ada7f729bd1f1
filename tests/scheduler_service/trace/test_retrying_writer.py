"""A trace goes on after its disk was full."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import structlog
from specsched_scheduler.trace import TraceConfig, writer
from specsched_scheduler.trace.retrying_writer import RetryingWriter

from tests.scheduler_service.trace.test_writer import MAX_AGE_S, Clock, row, step_ids


class FullDisk(pq.ParquetWriter):
    """Its file is made, and takes nothing."""

    def write_table(self, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_it_goes_on_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    trace = RetryingWriter(TraceConfig(tmp_path, max_file_age_s=MAX_AGE_S), "test-1", clock)
    trace.describe({"policy": "a"})
    with structlog.testing.capture_logs() as logs:
        with monkeypatch.context() as full:
            full.setattr(writer.pq, "ParquetWriter", FullDisk)
            for step in range(60):
                trace.write([row(step)])
                clock.now_s += 1.0
            trace.describe({"policy": "b"})
        assert list(tmp_path.iterdir()) == []
        clock.now_s += 100.0
        trace.write([row(100)])
        trace.close()
    assert step_ids(tmp_path) == [[100]]
    assert trace.num_lost == 60
    assert [each["event"] for each in logs] == ["trace interrupted"]
    (file,) = tmp_path.iterdir()
    assert pq.read_schema(file).metadata[b"specsched.policy"] == b"b"


def test_each_interruption_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    trace = RetryingWriter(TraceConfig(tmp_path, max_file_age_s=MAX_AGE_S), "test-1", clock)
    with structlog.testing.capture_logs() as logs:
        for step in range(2):
            with monkeypatch.context() as full:
                full.setattr(writer.pq, "ParquetWriter", FullDisk)
                trace.write([row(step)])
                trace.close()
            clock.now_s += 100.0
            trace.write([row(10 + step)])
            trace.close()
    assert step_ids(tmp_path) == [[10], [11]]
    assert len(logs) == 2


def test_a_folder_that_cannot_be_made_is_made_once_it_can(tmp_path: Path):
    clock, in_its_place = Clock(), tmp_path / "traces"
    in_its_place.touch()
    trace = RetryingWriter(TraceConfig(in_its_place, max_file_age_s=MAX_AGE_S), "test-1", clock)
    with structlog.testing.capture_logs() as logs:
        trace.write([row(1)])
        trace.close()
    assert (logs[0]["event"], trace.num_lost) == ("trace interrupted", 1)
    in_its_place.unlink()
    clock.now_s += 100.0
    trace.write([row(2)])
    trace.close()
    assert step_ids(in_its_place) == [[2]]
