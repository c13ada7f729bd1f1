"""Whether other programs want the cores that a model's threads compute on, and what then."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    "turns_of_threads",
]

_log = structlog.get_logger(__name__)

_EVERY_S: Final = 0.5
_TASKS: Final = Path("/proc/self/task")
_CROWDED: Final = 0.2
_FREE: Final = 0.1
_FIRST_CALM: Final = 2
_LONGEST_CALM: Final = 128
_BUSY_NS: Final = int(0.1 * _EVERY_S * 1e9)
_PARALLEL_ELEMENTS: Final = 1 << 18
"""Well above what torch leaves to a single thread."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Of all threads together, in ns: on a core, and runnable but waiting for one."""

    running: int
    queueing: int

    def since(self, earlier: Turns) -> Turns:
        """What came since; a thread that ended takes its part with it."""
        return Turns(
            max(self.running - earlier.running, 0), max(self.queueing - earlier.queueing, 0)
        )


class Crowding:
    """Decides by how long threads queue for a core whether they share their cores with others.

    Threads that spin beside one other busy program queue for 0.36 to 0.45 of the time that they
    want a core, threads that wait asleep for 0.24 to 0.34, and with nobody else but a scheduler and
    a client of 16 streams for less than 0.09.

    Turned free too early, the next interval is slow and tells; the calm that is asked for then
    doubles, up to a minute.
    """

    def __init__(self) -> None:
        self.is_crowded = False
        self._calm = 0
        self._calm_wanted = _FIRST_CALM
        self._since_free = 0

    def observe(self, turns: Turns) -> bool:
        """turns: those of the last interval. Returns `is_crowded`."""
        wanted = turns.running + turns.queueing
        if wanted < _BUSY_NS:
            return self.is_crowded  # nothing was computed, which tells nothing
        share = turns.queueing / wanted
        if self.is_crowded:
            self._calm = self._calm + 1 if share < _FREE else 0
            if self._calm >= self._calm_wanted:
                self.is_crowded, self._since_free = False, 0
            return self.is_crowded
        self._since_free += 1
        if share > _CROWDED:
            relapsed = self._calm > 0 and self._since_free <= self._calm_wanted
            self._calm_wanted = (
                min(2 * self._calm_wanted, _LONGEST_CALM) if relapsed else _FIRST_CALM
            )
            self.is_crowded, self._calm = True, 0
        return self.is_crowded


def turns_of_threads(tasks: Path = _TASKS) -> Turns | None:
    """Those of this process since its threads began; None where the kernel does not tell."""
    running = queueing = 0
    try:
        for task in tasks.iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                on_core, in_queue, _ = (task / "schedstat").read_text("ascii").split()
                running, queueing = running + int(on_core), queueing + int(in_queue)
    except (OSError, ValueError):
        return None
    return Turns(running, queueing) if running else None


@contextlib.contextmanager
def heeding_other_programs(
    read: Callable[[], Turns | None] = turns_of_threads, every_s: float = _EVERY_S
) -> Iterator[None]:
    """Have OpenMP's threads wait for each other asleep while others want their cores.

    Does nothing where the user chose how they wait, where `idle_pools_needed` is 0, and where the
    kernel does not count how long threads queue for a core.
    """
    num_pools = idle_pools_needed(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    if user_chose_waiting or num_pools == 0 or read() is None:
        yield
        return
    ended = threading.Event()
    watch = threading.Thread(
        target=_watch, args=(ended, num_pools, read, every_s), name="crowding-watch", daemon=True
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
                for _ in range(num_pools):
                    pools.enter_context(_idle_pool())
                _log.info("cores are shared", model_threads="wait for each other asleep")
            elif was_crowded and not is_crowded:
                pools.close()
                _log.info("cores are free", model_threads="wait for each other actively")


@contextlib.contextmanager
def _idle_pool() -> Iterator[None]:
    """Have OpenMP threads beside those that compute, which never get work.

    GNU OpenMP counts all that it has. While these are more than there are cores, none of them waits
    actively for more than 100 turns: the one way to tell a runtime that is loaded.
    """
    released = threading.Event()

    def hold() -> None:
        torch.zeros(_PARALLEL_ELEMENTS).add_(1)  # a pool belongs to the thread that first needs it
        released.wait()

    holder = threading.Thread(target=hold, name="openmp-idle-pool", daemon=True)
    holder.start()
    try:
        yield
    finally:
        released.set()
        holder.join()
