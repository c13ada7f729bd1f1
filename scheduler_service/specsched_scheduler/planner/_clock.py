"""System calls for nopython code, from libc by name: compiled code can then be cached."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from specsched_protocol.compiling import njit

__all__ = ["drain_eventfd", "monotonic_ns", "poll_readable", "ring_eventfd"]

_CLOCK_MONOTONIC = 1
_POLLIN = 1
_EVENT_BYTES = 8

_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.intc(types.intc, types.uintp))
_poll: Any = types.ExternalFunction("poll", types.intc(types.uintp, types.ulong, types.intc))
_write: Any = types.ExternalFunction("write", types.intp(types.intc, types.uintp, types.uintp))
_read: Any = types.ExternalFunction("read", types.intp(types.intc, types.uintp, types.uintp))


@njit(cache=True, nogil=True)
def monotonic_ns(scratch: Any) -> Any:
    """CLOCK_MONOTONIC in ns, the clock of time.monotonic_ns. scratch: int64 [>= 2]."""
    _clock_gettime(types.intc(_CLOCK_MONOTONIC), types.uintp(scratch.ctypes.data))
    return scratch[0] * 1_000_000_000 + scratch[1]


@njit(cache=True, nogil=True)
def poll_readable(first_fd: int, second_fd: int, timeout_ms: int, scratch: Any) -> None:
    """Sleep until one of two descriptors is readable, a signal came or the time is over.

    scratch: int64 [>= 2], laid out as struct pollfd {int fd; short events; short revents} [2].
    """
    events = np.int64(_POLLIN) << 32
    scratch[0] = np.int64(first_fd) | events
    scratch[1] = np.int64(second_fd) | events
    _poll(types.uintp(scratch.ctypes.data), types.ulong(2), types.intc(timeout_ms))


@njit(cache=True, nogil=True)
def drain_eventfd(fd: int, scratch: Any) -> None:
    """Reset a non-blocking eventfd's counter. scratch: int64 [>= 1]."""
    _read(types.intc(fd), types.uintp(scratch.ctypes.data), types.uintp(_EVENT_BYTES))


@njit(cache=True, nogil=True)
def ring_eventfd(fd: int, scratch: Any) -> None:
    """Wake whoever polls a non-blocking eventfd. scratch: int64 [>= 1]."""
    scratch[0] = 1
    _write(types.intc(fd), types.uintp(scratch.ctypes.data), types.uintp(_EVENT_BYTES))
