"""Carries a change of the active scheduler out: begun here, made by the engine, completed here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from specsched_executor.transport.lanes import LaneSwitch

from .election import Election, Transition
from .seams import LaneHost

__all__ = ["OnOutcome", "SwitchDesk", "SwitchOutcome"]

_TIMEOUT_S = 2.0
"""An engine that steps gives the target this long to have a plan in time."""
_IDLE_S = 0.1
"""An engine that reads no plan for so long may have nothing to do: look into the lane instead."""


@dataclass(frozen=True, slots=True)
class SwitchOutcome:
    """What became of a wished transition. step_id: the first step that follows the target.

    previous: who was followed until then; None where that is whoever is followed now.
    """

    done: bool
    reason: str = ""
    step_id: int = 0
    previous: str | None = None


OnOutcome = Callable[[Transition, SwitchOutcome], None]


@dataclass(slots=True)
class _Wish:
    transition: Transition
    on_outcome: OnOutcome
    switch: LaneSwitch | None = None
    begun_s: float = 0.0
    last_read: int = -1
    last_read_s: float = 0.0


class SwitchDesk:
    """One switch at a time, the others wait. Not thread-safe: its owner locks.

    followed_since_ns: when the present active scheduler became so.
    """

    def __init__(self, lanes: LaneHost, election: Election) -> None:
        self.followed_since_ns = 0
        self._lanes = lanes
        self._election = election
        self._wishes: deque[_Wish] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether a switch is under way or waits."""
        return bool(self._wishes)

    @property
    def num_wishes(self) -> int:
        """How many switches are under way or wait."""
        return len(self._wishes)

    def at_once(self, transition: Transition) -> None:
        """Switch now, whether or not a plan is ready: there is nobody to read from till then."""
        for wish in self._wishes:  # one that is begun begins anew, beside another active lane
            wish.switch = None
        self._commit(transition)

    def wish(self, transition: Transition, on_outcome: OnOutcome) -> None:
        """Switch at the first step whose plan the target has ready; tell what came of it."""
        self._wishes.append(_Wish(transition, on_outcome))

    def drop(self, lane: int, reason: str) -> None:
        """The scheduler of `lane` is gone: what was wished for it cannot be done."""
        for wish in self._wishes_for(lane):
            self._end(wish, SwitchOutcome(False, reason))

    def withdraw(self, lane: int, reason: str) -> None:
        """The scheduler of `lane` stays, but is not to be followed; what is done already stands."""
        for wish in self._wishes_for(lane):
            self._take_back(wish, reason)

    def call_off_failover(self, reason: str) -> None:
        """The active scheduler decides again: take back the failover that is under way."""
        if self._wishes and self._wishes[0].transition.is_failover:
            self._take_back(self._wishes[0], reason)

    def settle_lost_active(self) -> bool:
        """The active scheduler is gone: complete the switch that is under way, if there is one."""
        if not self._wishes or self._wishes[0].switch is None:
            return False
        self._complete(self._wishes[0], self._lanes.last_read_step_id() + 1)
        return True

    def advance(self) -> None:
        """Do what can be done now; to be called again and again while busy."""
        if not self._wishes:
            return
        wish, now = self._wishes[0], time.monotonic()
        if wish.transition.target is self._election.active:
            self._election.confirm(wish.transition)
            self._end(wish, SwitchOutcome(True, step_id=self._lanes.last_read_step_id() + 1))
            return
        if self._election.is_void(wish.transition):
            self._end(wish, self._void(wish.transition))
            return
        if wish.switch is None:
            wish.switch = self._lanes.begin_switch(
                wish.transition.target.lane, yields=wish.transition.is_failover
            )
            wish.begun_s = wish.last_read_s = now
            wish.last_read = self._lanes.last_read_step_id()
            return
        if wish.switch.step_id is not None:
            self._complete(wish, wish.switch.step_id)
        elif self._is_idle(wish, now):
            self._complete(wish, wish.last_read + 1)
        elif now - wish.begun_s > _TIMEOUT_S:
            self._give_up(wish)

    def _is_idle(self, wish: _Wish, now: float) -> bool:
        last_read = self._lanes.last_read_step_id()
        if last_read != wish.last_read:
            wish.last_read, wish.last_read_s = last_read, now
        is_still = now - wish.last_read_s > _IDLE_S
        return is_still and self._lanes.has_plan(wish.transition.target.lane)

    def _give_up(self, wish: _Wish) -> None:
        name = wish.transition.target.name
        self._take_back(wish, f"{name} had no plan in time for {_TIMEOUT_S:g} s")

    def _take_back(self, wish: _Wish, reason: str) -> None:
        if wish.switch is not None and wish.switch.step_id is not None:
            self._complete(wish, wish.switch.step_id)
            return
        if wish.switch is not None:
            active = self._election.active
            self._lanes.activate(active.lane if active else None)
        self._end(wish, SwitchOutcome(False, reason))

    def _complete(self, wish: _Wish, step_id: int) -> None:
        active = self._election.active
        previous = active.name if active else ""
        self._commit(wish.transition)
        self._end(wish, SwitchOutcome(True, step_id=step_id, previous=previous))

    def _commit(self, transition: Transition) -> None:
        self._lanes.activate(transition.target.lane)
        self._election.commit(transition)
        self.followed_since_ns = time.monotonic_ns()

    def _void(self, transition: Transition) -> SwitchOutcome:
        """One who is to go is followed no more: done; one who returns comes too late: not done."""
        if transition.instead_of is not None:
            return SwitchOutcome(True, step_id=self._lanes.last_read_step_id() + 1)
        return SwitchOutcome(False, f"{self._election.elected} was elected meanwhile")

    def _wishes_for(self, lane: int) -> list[_Wish]:
        return [each for each in self._wishes if each.transition.target.lane == lane]

    def _end(self, wish: _Wish, outcome: SwitchOutcome) -> None:
        self._wishes.remove(wish)
        wish.on_outcome(wish.transition, outcome)
