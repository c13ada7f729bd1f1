"""How well a lane answers: kept by the engine's thread, read by any."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from specsched_protocol.plan import FallbackReason

__all__ = ["GARBAGE", "LaneHealth"]

GARBAGE: Final = frozenset(
    {FallbackReason.IMPOSSIBLE, FallbackReason.WRONG_EPOCH, FallbackReason.STALE_SOURCE}
)
"""Decisions that no sound scheduler makes, as opposed to those that did not come in time."""

_RECENT = 1.0 / 64


@dataclass(slots=True)
class LaneHealth:
    """Of the steps that a lane was asked about.

    num_faults: steps without a decision to follow, by reason. fault_run, garbage_run, sound_run:
    how many of a kind came last in a row; fault_since_ns, last_fault_ns: when the last run of
    faults began, and its last one so far.
    fault_share: of the last steps, the newer the more.
    """

    num_sound: int = 0
    num_faults: Counter[FallbackReason] = field(default_factory=Counter)
    fault_run: int = 0
    garbage_run: int = 0
    sound_run: int = 0
    fault_since_ns: int = 0
    last_fault_ns: int = 0
    fault_share: float = 0.0

    def sound(self) -> None:
        """A decision that may be followed was there in time."""
        self.num_sound += 1
        self.sound_run += 1
        self.fault_run = self.garbage_run = 0
        self.fault_share -= self.fault_share * _RECENT

    def fault(self, reason: FallbackReason, now_ns: int) -> None:
        """There was none, since `reason`."""
        if self.fault_run == 0:
            self.fault_since_ns = now_ns
        self.last_fault_ns = now_ns
        self.num_faults[reason] += 1
        self.sound_run = 0
        self.fault_run += 1
        self.garbage_run = self.garbage_run + 1 if reason in GARBAGE else 0
        self.fault_share += (1.0 - self.fault_share) * _RECENT
