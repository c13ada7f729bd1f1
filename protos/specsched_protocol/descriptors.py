"""File descriptors with an owner."""

from __future__ import annotations

import os

__all__ = ["OwnedDescriptor"]


class OwnedDescriptor:
    """A file descriptor, closed with the last reference to it.

    Whoever may still use the number holds this object, so it is never closed, and its number never
    given to another file, under a thread that is just using it.
    """

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """The number; valid as long as this object lives."""
        return self._fd

    def __del__(self) -> None:
        os.close(self._fd)
