"""When the parts of a step ran on the device, and how long it kept the device from the next one."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

__all__ = ["CudaTimeline", "HostTimeline", "Timeline", "timeline_for"]


class Timeline(Protocol):
    """Marks in stream order; durations are known after `wait`."""

    def follow(self, previous: Any) -> None:
        """Begin anew, behind a step that was launched and not waited for; None: behind none.

        Time between the end of that step and the start of this one is this one's: the device was
        idle, or copied, since the host needed that long for a step of its kind. `previous` must not
        begin anew before this one's durations were read.
        """

    def mark_start(self) -> None:
        """The step's inputs are there."""

    def mark_verified(self) -> None:
        """Its tokens are committed."""

    def mark_drafted(self) -> None:
        """Its drafts are made."""

    def mark_end(self) -> None:
        """Its outputs are on the host."""

    def wait(self) -> None:
        """Until the end."""

    @property
    def verify_ms(self) -> float:
        """From start, or from the end of the step before, to verified."""

    @property
    def draft_ms(self) -> float:
        """From verified to drafted."""


class CudaTimeline:
    """CUDA events. marks: start, verified, drafted.

    All are recorded on the stream that is current when the first step begins: to be asked for it
    each time takes the host several times as long as recording does.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self.marks = [_event(enable_timing=True) for _ in range(3)]
        self._end = _event(enable_timing=False)
        self._previous: CudaTimeline | None = None

    def follow(self, previous: CudaTimeline | None) -> None:
        """See Timeline."""
        self._previous = previous
        if self._stream is None:
            self._stream = torch.cuda.current_stream()

    def mark_start(self) -> None:
        """See Timeline."""
        self.marks[0].record(self._stream)

    def mark_verified(self) -> None:
        """See Timeline."""
        self.marks[1].record(self._stream)

    def mark_drafted(self) -> None:
        """See Timeline."""
        self.marks[2].record(self._stream)

    def mark_end(self) -> None:
        """See Timeline."""
        self._end.record(self._stream)

    def wait(self) -> None:
        """See Timeline; other threads run meanwhile."""
        self._end.synchronize()

    @property
    def verify_ms(self) -> float:
        """See Timeline."""
        begin = self.marks[0] if self._previous is None else self._previous.marks[2]
        return float(begin.elapsed_time(self.marks[1]))

    @property
    def draft_ms(self) -> float:
        """See Timeline."""
        return float(self.marks[1].elapsed_time(self.marks[2]))


class HostTimeline:
    """A device that computes when it is told to. marks: as of CudaTimeline, in seconds."""

    def __init__(self) -> None:
        self.marks = [0.0, 0.0, 0.0]
        self._previous: HostTimeline | None = None

    def follow(self, previous: HostTimeline | None) -> None:
        """See Timeline."""
        self._previous = previous

    def mark_start(self) -> None:
        """See Timeline."""
        self.marks[0] = time.perf_counter()

    def mark_verified(self) -> None:
        """See Timeline."""
        self.marks[1] = time.perf_counter()

    def mark_drafted(self) -> None:
        """See Timeline."""
        self.marks[2] = time.perf_counter()

    def mark_end(self) -> None:
        """See Timeline."""

    def wait(self) -> None:
        """Nothing runs any more."""

    @property
    def verify_ms(self) -> float:
        """See Timeline."""
        begin = self.marks[0] if self._previous is None else self._previous.marks[2]
        return (self.marks[1] - begin) * 1e3

    @property
    def draft_ms(self) -> float:
        """See Timeline."""
        return (self.marks[2] - self.marks[1]) * 1e3


def _event(*, enable_timing: bool) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=enable_timing)  # type: ignore[no-untyped-call]


def timeline_for(device: torch.device) -> Timeline:
    """The kind that this device needs."""
    return CudaTimeline() if device.type == "cuda" else HostTimeline()
