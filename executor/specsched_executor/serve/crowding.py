"""Whether other programs want the cores that a model's threads compute on, and what then."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import torch

from specsched_executor._openmp import user_chose_waiting

__all__ = [
    "Crowding",
    "Turns",
    "heeding_other_programs",
    "idle_pools_needed",
    "turns_of",
]

_log = structlog.get_logger(__name__)

_EVERY_S: Final = 0.25
_TASKS: Final = Path("/proc/self/task")
_CROWDED: Final = 0.2
_FREE: Final = 0.1
_TELLING: Final = 2
"""Crowded intervals in a row: a program that only comes and goes is none to yield to."""
_FIRST_CALM: Final = 2
_LONGEST_CALM: Final = 256
_BUSY_NS: Final = int(0.1 * _EVERY_S * 1e9)
_PARALLEL_ELEMENTS: Final = 1 << 18
"""Well above what torch leaves to a single thread."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Of a thread, in ns: on a core, and runnable but waiting for one."""

    running: int
    queueing: int

    def since(self, earlier: Turns) -> Turns:
        """What came since."""
        return Turns(self.running - earlier.running, self.queueing - earlier.queueing)


class Crowding:
    """Decides by how long the thread that takes the steps queues for a core.

    Beside one other busy program, on two cores, it queues for 0.43 to 0.49 of the time that it
    wants a core where its threads wait actively, and for 0.33 to 0.40 where they wait asleep; with
    nobody else but a scheduler and a client of 16 streams for less than 0.1.

    Turned free too early, the next intervals are slow and tell; the calm that is asked for then
    doubles, up to a minute.
    """

    def __init__(self) -> None:
        self.is_crowded = False
        self._in_a_row = 0
        self._since_change = math.inf
        self._calm_wanted = _FIRST_CALM

    def observe(self, turns: Turns) -> bool:
        """turns: those of the last interval. Returns `is_crowded`."""
        wanted = turns.running + turns.queueing
        if wanted < _BUSY_NS:
            return self.is_crowded  # nothing was computed, which tells nothing
        share = turns.queueing / wanted
        is_contrary = share < _FREE if self.is_crowded else share > _CROWDED
        self._since_change += 1
        self._in_a_row = self._in_a_row + 1 if is_contrary else 0
        if self._in_a_row == (self._calm_wanted if self.is_crowded else _TELLING):
            self._change()
        return self.is_crowded

    def _change(self) -> None:
        self.is_crowded = not self.is_crowded
        if self.is_crowded:
            is_relapse = self._since_change <= self._calm_wanted + _TELLING
            self._calm_wanted = (
                min(2 * self._calm_wanted, _LONGEST_CALM) if is_relapse else _FIRST_CALM
            )
        self._since_change = self._in_a_row = 0


def turns_of(thread_id: int, tasks: Path = _TASKS) -> Turns | None:
    """Those of a thread of this process since it began; None where the kernel does not tell."""
    try:
        running, queueing, _ = (tasks / str(thread_id) / "schedstat").read_text("ascii").split()
        turns = Turns(int(running), int(queueing))
    except (OSError, ValueError):
        return None
    return turns if turns.running else None


@contextlib.contextmanager
def heeding_other_programs(
    thread_id: int,
    read: Callable[[int], Turns | None] = turns_of,
    every_s: float = _EVERY_S,
) -> Iterator[None]:
    """Have OpenMP's threads wait for each other asleep while others want their cores.

    thread_id: of the one that has them compute. Does nothing where the user chose how they wait,
    where `idle_pools_needed` is 0, and where the kernel does not count what a thread queues for.
    """
    num_pools = idle_pools_needed(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    if user_chose_waiting or num_pools == 0 or read(thread_id) is None:
        yield
        return
    ended = threading.Event()
    watch = threading.Thread(
        target=_watch,
        args=(ended, num_pools, partial(read, thread_id), every_s),
        name="crowding-watch",
        daemon=True,
    )
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()


def idle_pools_needed(num_threads: int, num_cores: int) -> int:
    """So many that all OpenMP threads together are more than the cores.

    0 for one thread, which waits for none, where they are more already, and where at least as many
    cores are left to others.
    """
    if num_threads < 2 or num_threads > num_cores or 2 * num_threads <= num_cores:
        return 0
    return math.ceil((num_cores + 1 - num_threads) / (num_threads - 1))


def _watch(
    ended: threading.Event, num_pools: int, read: Callable[[], Turns | None], every_s: float
) -> None:
    crowding, before = Crowding(), read()
    with contextlib.ExitStack() as pools:
        while not ended.wait(every_s):
            now = read()
            if before is None or now is None:
                continue
            was_crowded, is_crowded = crowding.is_crowded, crowding.observe(now.since(before))
            before = now
            if is_crowded and not was_crowded:
                _log.info("cores are shared", model_threads="wait for each other asleep")
                try:
                    for _ in range(num_pools):
                        pools.enter_context(_idle_pool())
                except RuntimeError as error:
                    _log.warning("model threads go on waiting actively", reason=str(error))
            elif was_crowded and not is_crowded:
                pools.close()
                _log.info("cores are free", model_threads="wait for each other actively")


@contextlib.contextmanager
def _idle_pool() -> Iterator[None]:
    """Have OpenMP threads beside those that compute, which never get work.

    GNU OpenMP counts all that it has. While these are more than there are cores, none of them waits
    actively for more than 100 turns: the one way to tell a runtime that is loaded. Raises
    RuntimeError where no threads are to be had.
    """
    with contextlib.ExitStack() as trial:  # OpenMP would end the process where it gets none
        for _ in range(torch.get_num_threads()):
            trial.enter_context(_waiting_thread(lambda: None))
    # A pool belongs to the thread that first needs it.
    with _waiting_thread(lambda: torch.zeros(_PARALLEL_ELEMENTS).add_(1)):
        yield


@contextlib.contextmanager
def _waiting_thread(first: Callable[[], object]) -> Iterator[None]:
    """A thread that does `first`, then waits for the end of the block."""
    released = threading.Event()

    def run() -> None:
        first()
        released.wait()

    thread = threading.Thread(target=run, name="openmp-idle-pool", daemon=True)
    thread.start()
    try:
        yield
    finally:
        released.set()
        thread.join()
