"""Which protocol versions and features this release speaks.

A version says what a peer must understand, a feature what both may use: behaviour depends on the
features that two peers agreed on, never on a version number. A release speaks its own version and
the one before it, so that either end may be upgraded first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from specsched_protocol.v1 import scheduler_pb2 as pb

__all__ = ["FEATURES", "PROTOCOL_RANGE", "VersionRange", "common_features"]


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Protocol versions one side speaks, both ends included."""

    min_version: int
    max_version: int

    def __str__(self) -> str:
        return f"{self.min_version}..{self.max_version}"

    def __contains__(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    @classmethod
    def of(cls, message: pb.ProtocolRange) -> VersionRange:
        """The range that a peer sent."""
        return cls(message.min_version, message.max_version)

    def to_message(self) -> pb.ProtocolRange:
        """The range as it is sent."""
        return pb.ProtocolRange(min_version=self.min_version, max_version=self.max_version)


PROTOCOL_RANGE: Final = VersionRange(1, 2)
"""1: attach, plan, report. 2: peers tell each other their features."""

FEATURES: Final[tuple[pb.Feature.ValueType, ...]] = (
    pb.FEATURE_LANE_CONTROL,
    pb.FEATURE_LEARNED_STATE,
)


def common_features(theirs: Iterable[int]) -> tuple[pb.Feature.ValueType, ...]:
    """Those of ours that a peer has too; what it has beyond them is ignored."""
    known = set(theirs)
    return tuple(feature for feature in FEATURES if feature in known)
