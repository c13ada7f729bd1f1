"""How long this process waits for cores that others use, as Linux counts it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

__all__ = ["RunQueue"]

_TASKS: Final = Path("/proc/self/task")
_NS: Final = 1e-9


class RunQueue:
    """The time that threads of this process could have run and had no core.

    Each has its own in /proc/self/task/TID/schedstat, in containers as well; what a CPU limit
    withholds counts too. A kernel without these files says that nobody waits. What a hypervisor
    takes is not seen. tasks: folder of the threads.
    """

    def __init__(self, tasks: Path = _TASKS) -> None:
        self._tasks = tasks
        self._waited_ns = self._read()

    def longest_wait_s(self) -> float:
        """Since the last call, of the thread that waited longest: all threads of a step wait for
        the last one of them."""
        before, self._waited_ns = self._waited_ns, self._read()
        waits = (ns - before.get(thread, 0) for thread, ns in self._waited_ns.items())
        return max(waits, default=0) * _NS

    def _read(self) -> dict[str, int]:
        """By thread, since it began."""
        waited_ns = {}
        for path in self._tasks.glob("*/schedstat"):
            # Gone since it was listed, or of another form.
            with contextlib.suppress(OSError, ValueError, IndexError):
                waited_ns[path.parent.name] = int(path.read_text(encoding="ascii").split()[1])
        return waited_ns
