"""A sequence lock around a block of words: one writer, any number of readers, nobody waits.

A block is its sequence word at `base` and the payload behind it. The writer makes the sequence odd,
stores the payload, makes it even; a reader that saw the same even number before and after its loads
saw one publication whole. The payload is moved with relaxed atomics, so that a torn read is a
discarded value and not undefined behaviour, and the fences order it on Arm as well as on x86
(Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012).
"""

from __future__ import annotations

from typing import Any

from numba import njit

from specsched_protocol.shm.atomics import (
    fence_acquire,
    fence_release,
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)

__all__ = ["EMPTY", "INVALID", "OK", "TORN", "begin_read", "begin_write", "end_read", "end_write"]

OK = 0
"""The block was read whole."""
EMPTY = 1
"""Nothing was published there yet, or something else than was asked for."""
TORN = 2
"""The writer was at work during every one of the bounded tries."""
INVALID = 3
"""Read whole, but a count or index in it is out of range."""


@njit(inline="always")
def begin_write(words: Any, base: int) -> Any:
    """Mark the block as being written; returns the odd sequence for `end_write`."""
    odd = (load_relaxed(words, base) + 1) | 1
    store_relaxed(words, base, odd)
    fence_release()
    return odd


@njit(inline="always")
def end_write(words: Any, base: int, odd: int) -> None:
    """Publish the payload stored since `begin_write`."""
    store_release(words, base, odd + 1)


@njit(inline="always")
def begin_read(words: Any, base: int) -> Any:
    """The sequence to hand to `end_read`; 0 where nothing was ever published."""
    return load_acquire(words, base)


@njit(inline="always")
def end_read(words: Any, base: int, begun: int) -> Any:
    """True if the payload loaded since `begin_read` is one whole publication."""
    fence_acquire()
    return (begun & 1) == 0 and load_relaxed(words, base) == begun
