"""When a file of a trace is ended, by a clock of the test's own."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from specsched_scheduler.learning.errors import TraceError
from specsched_scheduler.trace import TraceConfig
from specsched_scheduler.trace.reader import read_trace_files
from specsched_scheduler.trace.schema import SCHEMA
from specsched_scheduler.trace.writer import TraceWriter

MAX_AGE_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def writer(tmp_path: Path, clock: Clock) -> TraceWriter:
    return TraceWriter(TraceConfig(tmp_path, max_file_age_s=MAX_AGE_S), "test-1", clock)


def row(step_id: int) -> dict[str, Any]:
    return dict.fromkeys(SCHEMA.names) | {"step_id": step_id}


def step_ids(directory: Path) -> list[list[int]]:
    """Of each file that can be read."""
    return [
        pq.read_table(file, columns=["step_id"])["step_id"].to_pylist()
        for file in sorted(directory.glob("*.parquet"))
    ]


def test_a_file_is_ended_when_its_first_step_has_waited_long_enough(
    tmp_path: Path, writer: TraceWriter, clock: Clock
):
    writer.write([row(1)])
    clock.now_s += 6.0
    writer.write([row(2)])
    assert writer.due_in_s == pytest.approx(4.0)
    writer.close_if_due()
    assert step_ids(tmp_path) == []
    clock.now_s += 4.0
    writer.close_if_due()
    assert step_ids(tmp_path) == [[1, 2]]


def test_steps_that_keep_coming_do_not_put_the_end_off(
    tmp_path: Path, writer: TraceWriter, clock: Clock
):
    for step in range(25):
        writer.write([row(step)])
        clock.now_s += 1.0
    assert step_ids(tmp_path) == [list(range(11)), list(range(11, 22))]


def test_no_file_is_begun_while_no_step_comes(tmp_path: Path, writer: TraceWriter, clock: Clock):
    writer.write([row(1)])
    clock.now_s += MAX_AGE_S
    writer.close_if_due()
    assert writer.due_in_s is None
    clock.now_s += 100 * MAX_AGE_S
    writer.close_if_due()
    writer.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_under_way_has_another_name_and_the_reader_says_what_to_do(
    tmp_path: Path, writer: TraceWriter
):
    writer.write([row(step) for step in range(600)])
    (unfinished,) = tmp_path.iterdir()
    assert unfinished.name.endswith(".parquet.part")
    with pytest.raises(TraceError, match=r"only unfinished files \(\.part\).*Wait some seconds"):
        next(read_trace_files(tmp_path))
    writer.close()
    assert step_ids(tmp_path) == [list(range(600))]


def leave_behind(path: Path, num_bytes: int, age_s: float) -> None:
    path.write_bytes(bytes(num_bytes))
    written_s = time.time() - age_s
    os.utime(path, (written_s, written_s))


def test_what_killed_schedulers_left_makes_room_and_what_others_write_stays(tmp_path: Path):
    config = TraceConfig(tmp_path, 60_000, 20_000, max_file_age_s=MAX_AGE_S)
    leave_behind(tmp_path / "a.parquet.part", 30_000, 100 * MAX_AGE_S)
    leave_behind(tmp_path / "b.parquet.part", 20_000, MAX_AGE_S)
    leave_behind(tmp_path / "c.parquet", 5_000, 0.0)
    writer = TraceWriter(config, "test-1")
    writer.write([row(1)])
    writer.close()
    left = sorted(file.name for file in tmp_path.iterdir())
    assert [name for name in left if "test-1" not in name] == ["b.parquet.part", "c.parquet"]
    assert len(left) == 3


def test_files_that_other_writers_remove_meanwhile_are_no_failure(
    tmp_path: Path, writer: TraceWriter
):
    (tmp_path / "gone.parquet").symlink_to(tmp_path / "nowhere")  # listed, and not there
    writer.write([row(1)])
    writer.close()
    assert writer.num_ended == 1


def test_others_of_the_machine_cannot_read_it(tmp_path: Path, writer: TraceWriter):
    tmp_path.chmod(0o755)
    writer.write([row(1)])
    writer.close()
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
