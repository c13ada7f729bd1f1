"""Threads of a model wait for each other asleep while others want their cores."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch
from specsched_executor.serve import crowding
from specsched_executor.serve.crowding import (
    Crowding,
    Turns,
    heeding_other_programs,
    idle_pools_needed,
    turns_of,
)

SECOND = 1_000_000_000
ALONE = Turns(running=95 * SECOND // 100, queueing=5 * SECOND // 100)
SHARED = Turns(running=60 * SECOND // 100, queueing=40 * SECOND // 100)
IDLE = Turns(running=SECOND // 1000, queueing=SECOND // 1000)


def crowded() -> Crowding:
    watch = Crowding()
    crowd(watch)
    return watch


def crowd(watch: Crowding) -> None:
    watch.observe(SHARED)
    assert watch.observe(SHARED)


def calm_until_free(watch: Crowding) -> int:
    for intervals in range(1, 1000):
        if not watch.observe(ALONE):
            return intervals
    raise AssertionError("never free again")


def test_two_crowded_intervals_in_a_row_tell():
    watch = Crowding()
    assert not watch.observe(SHARED)
    assert not watch.observe(ALONE)
    assert not watch.observe(SHARED)
    assert watch.observe(SHARED)


def test_calm_has_to_last():
    watch = crowded()
    assert watch.observe(ALONE)
    assert watch.observe(SHARED)
    assert watch.observe(ALONE)
    assert not watch.observe(ALONE)


def test_nothing_is_learned_while_nothing_is_computed():
    watch = Crowding()
    assert not watch.observe(IDLE)
    crowd(watch)
    for _ in range(100):
        assert watch.observe(IDLE)


def test_who_comes_back_at_once_is_waited_for_longer_up_to_a_minute():
    watch, calms = Crowding(), []
    for _ in range(9):
        crowd(watch)
        calms.append(calm_until_free(watch))
    assert calms == [2, 4, 8, 16, 32, 64, 128, 256, 256]


def test_who_stays_away_is_forgotten():
    watch = Crowding()
    for _ in range(3):
        crowd(watch)
        calm_until_free(watch)
    for _ in range(20):
        watch.observe(ALONE)
    crowd(watch)
    assert calm_until_free(watch) == 2


@pytest.mark.parametrize(
    ("num_threads", "num_cores", "expected"),
    [(1, 1, 0), (3, 2, 0), (2, 2, 1), (2, 3, 2), (2, 4, 0), (8, 8, 1), (8, 15, 2), (8, 16, 0)],
)
def test_pools_are_so_many_that_threads_outnumber_the_cores(num_threads, num_cores, expected):
    assert idle_pools_needed(num_threads, num_cores) == expected
    if expected:
        assert num_threads + expected * (num_threads - 1) > num_cores


def counted(tasks: Path, content: str) -> Path:
    (tasks / "7").mkdir()
    (tasks / "7" / "schedstat").write_text(content)
    return tasks


def test_turns_as_the_kernel_counts_them(tmp_path):
    turns = turns_of(7, counted(tmp_path, "100 21 5\n"))
    assert turns == Turns(100, 21)
    assert Turns(130, 22).since(turns) == Turns(30, 1)


@pytest.mark.parametrize("content", ["", "0 0 0", "1 2", "a b c"])
def test_a_kernel_that_does_not_count_is_told(tmp_path, content):
    assert turns_of(7, counted(tmp_path, content)) is None
    assert turns_of(8, tmp_path) is None


def test_turns_of_this_thread_grow():
    before = turns_of(threading.get_native_id())
    if before is None:
        pytest.skip("this kernel does not count them")
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    assert turns_of(threading.get_native_id()).since(before).running >= 10_000_000


def idle_pools() -> int:
    return sum(thread.name == "openmp-idle-pool" for thread in threading.enumerate())


def comes(condition) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.001)
    return False


@pytest.fixture
def two_threads_on_two_cores(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(crowding, "user_chose_waiting", False)


class Counters:
    """What a kernel would count: at every reading the next of `first`, then `each`, come to it."""

    def __init__(self, *first: Turns) -> None:
        self.each = first[-1] if first else ALONE
        self._first = list(first)
        self._sum = Turns(1, 1)

    def __call__(self, thread_id: int) -> Turns:
        now = self._sum
        more = self._first.pop(0) if self._first else self.each
        self._sum = Turns(now.running + more.running, now.queueing + more.queueing)
        return now


@pytest.mark.usefixtures("two_threads_on_two_cores")
def test_a_pool_is_there_while_cores_are_shared():
    counters = Counters()
    with heeding_other_programs(7, counters, every_s=0.001):
        counters.each = SHARED
        assert comes(lambda: idle_pools() == 1)
        counters.each = ALONE
        assert comes(lambda: idle_pools() == 0)
        counters.each = SHARED
        assert comes(lambda: idle_pools() == 1)
    assert idle_pools() == 0


@pytest.mark.usefixtures("two_threads_on_two_cores")
def test_the_watch_goes_on_where_no_thread_was_to_be_had(monkeypatch):
    start, refused = threading.Thread.start, []

    def refuse_once(thread: threading.Thread) -> None:
        if thread.name == "openmp-idle-pool" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    twice = [ALONE, SHARED, SHARED, ALONE, ALONE, SHARED]
    with heeding_other_programs(7, Counters(*twice), every_s=0.001):
        assert comes(lambda: idle_pools() == 1)
        assert refused


@pytest.mark.usefixtures("two_threads_on_two_cores")
@pytest.mark.parametrize("why", ["the user chose", "one thread", "nothing is counted"])
def test_nothing_is_watched(monkeypatch, why):
    read = Counters()
    if why == "the user chose":
        monkeypatch.setattr(crowding, "user_chose_waiting", True)
    elif why == "one thread":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    else:
        read = lambda thread_id: None  # noqa: E731
    with heeding_other_programs(7, read, every_s=0.001):
        assert not any(thread.name == "crowding-watch" for thread in threading.enumerate())
