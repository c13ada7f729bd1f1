"""What the learner sleeps on until there are steps to learn from."""

from __future__ import annotations

import os
import select

from specsched_protocol.descriptors import OwnedDescriptor

__all__ = ["LessonBell"]


class LessonBell:
    """Rung by the planner loop, which has its descriptor, and by any thread. One thread waits."""

    def __init__(self) -> None:
        self._event = OwnedDescriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._poll = select.poll()
        self._poll.register(self._event.fileno(), select.POLLIN)

    def fileno(self) -> int:
        """Of a non-blocking eventfd."""
        return self._event.fileno()

    def ring(self) -> None:
        """End the present wait, or the next one."""
        os.eventfd_write(self._event.fileno(), 1)

    def wait(self, timeout_s: float) -> None:
        """Wait until it rings, or the time is over."""
        if self._poll.poll(timeout_s * 1e3):
            os.eventfd_read(self._event.fileno())
