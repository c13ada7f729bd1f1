"""What a policy leaves out on demand, as `throughput(context=0)` does: for measuring."""

from __future__ import annotations

from collections.abc import Mapping

from specsched_scheduler.decision.codes import Feature
from specsched_scheduler.policies.base import Parameter

__all__ = ["FEATURES", "left_out", "name_of"]


def name_of(feature: Feature) -> str:
    """As it is typed: the name of its parameter."""
    return str(feature.name).lower()


FEATURES: tuple[Parameter, ...] = tuple(
    Parameter(name_of(feature), default=1, minimum=0, maximum=1, is_integer=True, is_quiet=True)
    for feature in Feature
)
"""One for each Feature, by its name: 1 keeps it, 0 leaves it out."""


def left_out(kept: Mapping[str, int]) -> int:
    """The Features whose parameter is 0."""
    return sum(int(each) for each in Feature if not kept.get(name_of(each), 1))
