"""Which of the attached schedulers is followed, and what they are told about it."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import structlog
from specsched_protocol.policy_text import policy_text
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from .election import Election, Member, SwitchReason, Transition
from .handover import Handovers
from .info import AttachmentInfo
from .requests import LaneRequests
from .seams import LaneHost
from .session import AttachSession
from .supervision import SupervisionConfig, failure_of, fitness_of, has_recovered
from .switching import OnOutcome, SwitchDesk, SwitchOutcome

__all__ = ["Following"]

_log = structlog.get_logger(__name__)


class Following:
    """Keeps the election, the sessions behind it and the lanes in step; any thread.

    Nothing here waits for the engine or for a scheduler: `tick` carries on what was begun.
    """

    def __init__(self, lanes: LaneHost, config: SupervisionConfig) -> None:
        self._lanes = lanes
        self._config = config
        self._lock = threading.RLock()
        self._election = Election()
        self._desk = SwitchDesk(lanes, self._election)
        self._sessions: dict[int, AttachSession] = {}
        self._is_fleeing = False
        self._handovers = Handovers()
        self._requests = LaneRequests(lanes, self._election, self)

    # ===================== Schedulers come and go =====================

    def join(self, session: AttachSession) -> AttachmentInfo:
        """A scheduler is ready."""
        with self._lock:
            lane = session.offer.lane
            self._lanes.lane_ready(lane)
            self._sessions[lane] = session
            transition = self._election.join(lane, session.scheduler_name)
            if transition is not None:
                self._follow(transition)
            elif self._election.active is not None:  # a shadow begins with what is known already
                self._handovers.begin(self._active_session(), session, lambda: None)
            self._tell()
            return self._info(self._member(lane))

    def leave(self, session: AttachSession, reason: str) -> bool:
        """A scheduler is gone, or never came to be ready; closes its lane. Whether it was ready."""
        lane = session.offer.lane
        with self._lock:
            is_member = self._sessions.get(lane) is session
            self._handovers.drop(session)
            try:
                if is_member:
                    self._replace(self._member(lane), reason)
            finally:
                if is_member:
                    del self._sessions[lane]
                # Only now: so no step is read between two active lanes.
                self._lanes.close_lane(lane)
            self._tell()
            return is_member

    def request(self, session: AttachSession, request: pb.LaneRequest) -> None:
        """A scheduler wishes to be followed, or not to be."""
        with self._lock:
            lane = session.offer.lane
            is_member = self._sessions.get(lane) is session
            self._requests.take(session, self._member(lane) if is_member else None, request)

    # ===================== Carrying a switch out; the lock is held =====================

    def fitness(self, member: Member) -> tuple[float, ...] | None:
        """See Switcher."""
        lane = self._lanes.lane(member.lane)
        return fitness_of(lane.health, lane.tally.mean_regret, self._config)

    def switch(self, transition: Transition, on_outcome: OnOutcome) -> None:
        """See Switcher."""
        target = self._sessions[transition.target.lane]

        def go_on() -> None:
            if self._sessions.get(target.offer.lane) is target:
                self._desk.wish(transition, on_outcome)
                self._desk.advance()
            else:
                on_outcome(transition, SwitchOutcome(False, f"{target.scheduler_name} is gone"))

        self._handovers.begin(self._active_session(), target, go_on)

    def forget(self, member: Member, reason: str) -> None:
        """See Switcher."""
        self._handovers.drop(self._sessions[member.lane])
        self._desk.withdraw(member.lane, reason)

    def on_outcome(self, transition: Transition, outcome: SwitchOutcome) -> None:
        """See Switcher."""
        target, reason = transition.target.name, str(transition.reason)
        if outcome.done:
            policies = {
                "previous_policy": self.policy_of(outcome.previous or ""),
                "policy": self.policy_of(target),
            }
            told = {key: policy_text(policy) for key, policy in policies.items() if policy}
            step_id = outcome.step_id
            _log.info("switched scheduler", active=target, reason=reason, step_id=step_id, **told)
        else:
            _log.warning("not switched", scheduler=target, reason=reason, because=outcome.reason)
        self._tell()

    def policy_of(self, name: str) -> plan_pb2.PolicySpec | None:
        """See Switcher."""
        sessions = self._sessions.values()
        return next((each.policy for each in sessions if each.scheduler_name == name), None)

    @property
    def num_waiting(self) -> int:
        """See Switcher."""
        return self._desk.num_wishes + self._handovers.num_under_way

    # ===================== Watching =====================

    def tick(self) -> None:
        """Give up an active scheduler that fails; carry on the switch that is under way."""
        with self._lock:
            self._handovers.advance()
            self._desk.advance()
            self._recover()
            active = self._election.active
            if active is None:
                self._follow_whoever_is_fit()
                return
            reason = self._failure_of(active)
            if reason is None:
                self._is_fleeing = False
                self._desk.call_off_failover(f"{active.name} decides again")
            elif not self._desk.is_busy:
                self._fail_over(active, reason)

    def learned(self, session: AttachSession, document: str) -> None:
        """A scheduler tells what it learned."""
        with self._lock:
            self._handovers.on_state(session, document)

    def state_taken(self, session: AttachSession, refusal: str) -> None:
        """A scheduler goes on from what another learned."""
        with self._lock:
            self._handovers.on_taken(session, refusal)

    def tell(self) -> None:
        """Tell every scheduler its role and how its decisions compare."""
        with self._lock:
            self._tell()

    def infos(self) -> tuple[AttachmentInfo, ...]:
        """The schedulers attached and ready now, oldest first."""
        with self._lock:
            return tuple(self._info(member) for member in self._election.members)

    @property
    def num_members(self) -> int:
        """Schedulers attached and ready."""
        with self._lock:
            return len(self._election.members)

    @property
    def active_name(self) -> str:
        """Who is followed; empty: nobody."""
        active = self._election.active
        return active.name if active else ""

    @property
    def elected_name(self) -> str:
        """Who is to be followed when attached; empty: nobody yet."""
        return self._election.elected or ""

    def num_switches(self) -> Mapping[str, int]:
        """Changes of the active scheduler by reason."""
        with self._lock:
            return {str(reason): n for reason, n in self._election.num_switches.items()}

    # ===================== Inside =====================

    def _member(self, lane: int) -> Member:
        return next(each for each in self._election.members if each.lane == lane)

    def _follow(self, transition: Transition) -> None:
        if self._election.active is None:
            self._desk.at_once(transition)
        else:
            self.switch(transition, self.on_outcome)

    def _active_session(self) -> AttachSession | None:
        active = self._election.active
        return None if active is None else self._sessions.get(active.lane)

    def _replace(self, member: Member, reason: str) -> None:
        self._desk.drop(member.lane, f"{member.name} is gone: {reason}")
        if member is self._election.active and self._desk.settle_lost_active():
            self._election.members.remove(member)
            return
        transition = self._election.leave(member, self.fitness)
        if transition is not None:
            self._desk.at_once(transition)

    def _recover(self) -> None:
        for member in self._election.members:
            is_given_up = member.role == pb.LANE_ROLE_SUSPENDED
            if is_given_up and has_recovered(self._lanes.lane(member.lane).health, self._config):
                member.role = pb.LANE_ROLE_SHADOW
                _log.info("scheduler recovered", scheduler=member.name)

    def _failure_of(self, active: Member) -> SwitchReason | None:
        health = self._lanes.lane(active.lane).health
        last_heard_ns = self._sessions[active.lane].last_heard_ns
        return failure_of(health, self._desk.followed_since_ns, last_heard_ns, self._config)

    def _follow_whoever_is_fit(self) -> None:
        transition = self._election.successor_of_nobody(self.fitness)
        if transition is None or self._desk.is_busy:
            return
        self._desk.at_once(transition)
        self.on_outcome(
            transition, SwitchOutcome(True, step_id=self._lanes.last_read_step_id() + 1)
        )

    def _fail_over(self, active: Member, reason: SwitchReason) -> None:
        successor = self._election.best_shadow(self.fitness)
        if not self._is_fleeing:  # told once, however long it lasts
            name = successor.name if successor else None
            _log.warning(
                "scheduler fails", scheduler=active.name, reason=str(reason), successor=name
            )
        self._is_fleeing = True
        if successor is not None:
            self._desk.wish(Transition(successor, reason, active), self.on_outcome)
            self._desk.advance()

    def _info(self, member: Member) -> AttachmentInfo:
        lane = self._lanes.lane(member.lane)
        comparison = lane.tally.to_message(lane.health)
        return AttachmentInfo.of(
            self._sessions[member.lane],
            self._election.role(member),
            comparison,
            str(member.given_up_for or ""),
        )

    def _tell(self) -> None:
        infos = self.infos()
        members = [info.to_member() for info in infos]
        for info in infos:
            self._sessions[info.lane].send_lane_status(
                pb.LaneStatus(
                    role=info.role,
                    active_scheduler=self.active_name,
                    comparison=info.comparison,
                    members=members,
                    given_up_for=info.given_up_for,
                )
            )
