"""When the parts of a step ran on the device."""

from __future__ import annotations

import time
from typing import Protocol

import torch

__all__ = ["CudaTimeline", "HostTimeline", "Timeline", "timeline_for"]


class Timeline(Protocol):
    """Marks in stream order; durations are known after `wait`."""

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
        """From start to verified."""

    @property
    def draft_ms(self) -> float:
        """From verified to drafted."""


class CudaTimeline:
    """CUDA events."""

    def __init__(self) -> None:
        self._marks = [_event(enable_timing=True) for _ in range(3)]
        self._end = _event(enable_timing=False)

    def mark_start(self) -> None:
        """See Timeline."""
        self._marks[0].record()

    def mark_verified(self) -> None:
        """See Timeline."""
        self._marks[1].record()

    def mark_drafted(self) -> None:
        """See Timeline."""
        self._marks[2].record()

    def mark_end(self) -> None:
        """See Timeline."""
        self._end.record()

    def wait(self) -> None:
        """See Timeline; other threads run meanwhile."""
        self._end.synchronize()

    @property
    def verify_ms(self) -> float:
        """See Timeline."""
        return float(self._marks[0].elapsed_time(self._marks[1]))

    @property
    def draft_ms(self) -> float:
        """See Timeline."""
        return float(self._marks[1].elapsed_time(self._marks[2]))


class HostTimeline:
    """A device that computes when it is told to."""

    def __init__(self) -> None:
        self._marks = [0.0, 0.0, 0.0]

    def mark_start(self) -> None:
        """See Timeline."""
        self._marks[0] = time.perf_counter()

    def mark_verified(self) -> None:
        """See Timeline."""
        self._marks[1] = time.perf_counter()

    def mark_drafted(self) -> None:
        """See Timeline."""
        self._marks[2] = time.perf_counter()

    def mark_end(self) -> None:
        """See Timeline."""

    def wait(self) -> None:
        """Nothing runs any more."""

    @property
    def verify_ms(self) -> float:
        """See Timeline."""
        return (self._marks[1] - self._marks[0]) * 1e3

    @property
    def draft_ms(self) -> float:
        """See Timeline."""
        return (self._marks[2] - self._marks[1]) * 1e3


def _event(*, enable_timing: bool) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=enable_timing)  # type: ignore[no-untyped-call]


def timeline_for(device: torch.device) -> Timeline:
    """The kind that this device needs."""
    return CudaTimeline() if device.type == "cuda" else HostTimeline()
