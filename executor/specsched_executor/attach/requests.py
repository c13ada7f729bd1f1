"""What schedulers ask for themselves: to be followed, or not to be."""

from __future__ import annotations

from typing import Protocol

from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from .election import Election, Member, SwitchReason, Transition
from .seams import LaneHost
from .session import AttachSession
from .switching import OnOutcome, SwitchOutcome

__all__ = ["LaneRequests", "Switcher"]

_MAX_WISHES = 16


class Switcher(Protocol):
    """Who carries a switch out."""

    def fitness(self, member: Member) -> tuple[float, ...] | None:
        """How fit a shadow is to be followed; None: not at all."""

    def switch(self, transition: Transition, on_outcome: OnOutcome) -> None:
        """Hand what was learned over, then switch; tell what came of it."""

    def forget(self, member: Member, reason: str) -> None:
        """Take back whatever would have `member` followed."""

    def on_outcome(self, transition: Transition, outcome: SwitchOutcome) -> None:
        """Tell everybody what came of a switch."""

    def policy_of(self, name: str) -> plan_pb2.PolicySpec | None:
        """What the scheduler of this name decides by; None: it is not attached."""

    @property
    def num_waiting(self) -> int:
        """Switches that are under way or wait, be it for what was learned."""


class LaneRequests:
    """Carries requests out and answers each once. Not thread-safe: its owner locks."""

    def __init__(self, lanes: LaneHost, election: Election, switcher: Switcher) -> None:
        self._lanes = lanes
        self._election = election
        self._switcher = switcher

    def take(self, session: AttachSession, member: Member | None, request: pb.LaneRequest) -> None:
        """A scheduler asks. member: as it is known to the election; None: not any more."""
        refusal = self._refusal(session, request)
        if member is None or refusal is not None:
            self._reply(session, request, refusal or "the scheduler is not attached any more")
        elif request.wish == pb.LANE_WISH_ACTIVATE:
            self._switch(session, request, Transition(member, SwitchReason.PROMOTED))
        else:
            self._drain(session, request, member)

    def _refusal(self, session: AttachSession, request: pb.LaneRequest) -> str | None:
        if request.epoch != session.offer.epoch:
            return f"the request is of epoch {request.epoch}, this is {session.offer.epoch}"
        if request.wish not in {pb.LANE_WISH_ACTIVATE, pb.LANE_WISH_DRAIN}:
            return f"unknown wish {request.wish}"
        if self._switcher.num_waiting >= _MAX_WISHES:
            return f"{_MAX_WISHES} requests are waiting"
        return None

    def _drain(self, session: AttachSession, request: pb.LaneRequest, member: Member) -> None:
        self._switcher.forget(member, f"{member.name} drains")
        if member is not self._election.active:
            _retire(member, request)
            self._reply(session, request)
            return
        successor = self._election.best_shadow(self._switcher.fitness)
        if successor is None:
            self._reply(session, request, "no other scheduler is fit to take over")
            return
        self._switch(session, request, Transition(successor, SwitchReason.DRAINED, member))

    def _switch(
        self, session: AttachSession, request: pb.LaneRequest, transition: Transition
    ) -> None:
        def reply(made: Transition, outcome: SwitchOutcome) -> None:
            if made.instead_of is not None and outcome.done:
                _retire(made.instead_of, request)
            self._switcher.on_outcome(made, outcome)
            self._reply(session, request, outcome.reason, outcome)

        self._switcher.switch(transition, reply)

    def _reply(
        self,
        session: AttachSession,
        request: pb.LaneRequest,
        refusal: str = "",
        outcome: SwitchOutcome | None = None,
    ) -> None:
        active = self._election.active
        name = active.name if active else ""
        previous = outcome.previous if outcome and outcome.previous is not None else name
        step_id = outcome.step_id if outcome else 0
        session.send_lane_reply(
            pb.LaneReply(
                request_id=request.request_id,
                done=not refusal,
                reason=refusal,
                previous_scheduler=previous,
                active_scheduler=name,
                step_id=step_id or self._lanes.last_read_step_id() + 1,
                previous_policy=self._switcher.policy_of(previous),
                active_policy=self._switcher.policy_of(name),
            )
        )


def _retire(member: Member, request: pb.LaneRequest) -> None:
    """One that drains because it ends is not to be chosen again; one that stays is a shadow."""
    if not request.stays:
        member.role = pb.LANE_ROLE_DRAINING
