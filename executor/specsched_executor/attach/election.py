"""Whose decisions are followed: the rules, without threads, clocks or memory.

- The first scheduler that is ready is followed, and elected.
- A promoted one is elected. So is the successor of an elected one that drained, died or failed.
- With nobody left, whoever comes first is followed, but the elected one stays elected: when it
  comes back, it is followed again. So a promotion outlives a time without any scheduler.
- One that drains because it ends, or was given up for its faults, does not take over by itself.
  One that was drained and stays is a shadow as any other.
- A change that waits its turn is void once what it was for is over: nobody is drained or given up
  who is not followed any more, nobody returns where another was elected meanwhile.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from specsched_protocol.v1 import scheduler_pb2 as pb

__all__ = ["Election", "Member", "SwitchReason", "Transition"]


class SwitchReason(enum.StrEnum):
    """Why another scheduler is followed."""

    FIRST = "first"
    STAND_IN = "stand_in"
    RETURNED = "returned"
    PROMOTED = "promoted"
    DRAINED = "drained"
    LOST = "lost"
    UNRESPONSIVE = "unresponsive"
    LIVELOCKED = "livelocked"
    GARBAGE = "garbage"


_FAILURES = (SwitchReason.UNRESPONSIVE, SwitchReason.LIVELOCKED, SwitchReason.GARBAGE)


@dataclass(slots=True)
class Member:
    """An attached scheduler by its lane. role: of a shadow; whether it is active stands apart.

    given_up_for: why it is not followed any more, if it was given up; until it is followed again.
    """

    lane: int
    name: str
    role: pb.LaneRole.ValueType = pb.LANE_ROLE_SHADOW
    given_up_for: SwitchReason | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """Follow `target` from now on, since `reason`; if given, only instead of `instead_of`."""

    target: Member
    reason: SwitchReason
    instead_of: Member | None = None

    @property
    def is_failover(self) -> bool:
        """Whether `instead_of` is attached, but fails."""
        return self.reason in _FAILURES


Fitness = Callable[[Member], tuple[float, ...] | None]
"""How fit a shadow is, the greater the better; None: not at all."""


class Election:
    """Keeps who is attached, active and elected. `commit` alone changes who is active."""

    def __init__(self) -> None:
        self.members: list[Member] = []  # in the order in which they came
        self.active: Member | None = None
        self.elected: str | None = None
        self.num_switches: Counter[SwitchReason] = Counter()

    def role(self, member: Member) -> pb.LaneRole.ValueType:
        """What a scheduler is told about itself."""
        return pb.LANE_ROLE_ACTIVE if member is self.active else member.role

    def join(self, lane: int, name: str) -> Transition | None:
        """A scheduler is ready; whether it is to be followed."""
        member = Member(lane, name)
        self.members.append(member)
        if self.active is None:
            if self.elected is None:
                return Transition(member, SwitchReason.FIRST)
            came_back = name == self.elected
            return Transition(member, SwitchReason.RETURNED if came_back else SwitchReason.STAND_IN)
        if name == self.elected and self.active.name != name:
            return Transition(member, SwitchReason.RETURNED)
        return None

    def leave(self, member: Member, fitness: Fitness) -> Transition | None:
        """A scheduler is gone; who is to be followed in its place, if it was."""
        self.members.remove(member)
        if member is not self.active:
            return None
        self.active = None
        successor = self.best_shadow(fitness)
        if successor is None:
            return None
        was_elected = member.name == self.elected
        return Transition(successor, SwitchReason.LOST if was_elected else SwitchReason.STAND_IN)

    def best_shadow(self, fitness: Fitness) -> Member | None:
        """The fittest shadow; of equals the one attached longest."""
        best: Member | None = None
        best_worth: tuple[float, ...] = ()
        for member in self.members:
            if member is self.active or member.role != pb.LANE_ROLE_SHADOW:
                continue
            worth = fitness(member)
            if worth is not None and (best is None or worth > best_worth):
                best, best_worth = member, worth
        return best

    def successor_of_nobody(self, fitness: Fitness) -> Transition | None:
        """Nobody is followed, though somebody may be fit by now."""
        successor = self.best_shadow(fitness)
        if self.active is not None or successor is None:
            return None
        came_back = successor.name == self.elected
        return Transition(successor, SwitchReason.RETURNED if came_back else SwitchReason.STAND_IN)

    def confirm(self, transition: Transition) -> None:
        """`target` is followed already. One that stood in is elected by being promoted."""
        if transition.reason is SwitchReason.PROMOTED:
            self.elected = transition.target.name

    def is_void(self, transition: Transition) -> bool:
        """Whether what `transition` is for is over."""
        if transition.reason is SwitchReason.RETURNED and self.elected != transition.target.name:
            return True
        return transition.instead_of is not None and transition.instead_of is not self.active

    def commit(self, transition: Transition) -> None:
        """`target` is followed."""
        previous, target, reason = self.active, transition.target, transition.reason
        self.active = target
        target.role = pb.LANE_ROLE_SHADOW
        target.given_up_for = None
        self.num_switches[reason] += 1
        if previous is not None and previous is not target and transition.is_failover:
            previous.role = pb.LANE_ROLE_SUSPENDED
            previous.given_up_for = reason
        stood_in = previous is not None and previous.name != self.elected
        is_chosen = reason in {SwitchReason.FIRST, SwitchReason.PROMOTED}
        is_stopgap = reason in {SwitchReason.STAND_IN, SwitchReason.RETURNED} or stood_in
        if is_chosen or not is_stopgap:
            self.elected = target.name
