"""An attachment as others are told of it."""

from __future__ import annotations

from dataclasses import dataclass

from specsched_protocol.enum_words import enum_word
from specsched_protocol.policy_text import policy_text
from specsched_protocol.v1 import executor_pb2, plan_pb2, scheduler_pb2

from .session import AttachSession

__all__ = ["AttachTotals", "AttachmentInfo"]


@dataclass(slots=True)
class AttachTotals:
    """Schedulers that attached; of them those that ended their stream in good order, and those
    that were lost without a word (killed, crashed, cut off) or broke the protocol. num_faults: of
    the executor itself, at looking for schedulers, at being attached and at watching them."""

    num_attached: int = 0
    num_ended: int = 0
    num_crashed: int = 0
    num_faults: int = 0


@dataclass(frozen=True, slots=True)
class AttachmentInfo:
    """A scheduler this executor is attached to, as seen now.

    target: what was dialled. transport: "shared_memory" or "inline", the latter with a reason.
    comparison: its decisions beside those of the active one. given_up_for: why it is not followed
    any more; empty: that is not so. policy_failures: as it last told; None: none.
    """

    scheduler_name: str
    target: str
    scheduler_version: str
    policy: plan_pb2.PolicySpec
    transport: str
    transport_reason: str
    lane: int
    epoch: int
    role: scheduler_pb2.LaneRole.ValueType
    comparison: scheduler_pb2.LaneComparison
    given_up_for: str = ""
    policy_failures: scheduler_pb2.PolicyFailures | None = None

    @classmethod
    def of(
        cls,
        session: AttachSession,
        role: scheduler_pb2.LaneRole.ValueType,
        comparison: scheduler_pb2.LaneComparison,
        given_up_for: str = "",
    ) -> AttachmentInfo:
        """What a session knows, and what is thought of its scheduler."""
        welcome = session.welcome or scheduler_pb2.Welcome()
        return cls(
            scheduler_name=session.scheduler_name,
            target=session.endpoint.target,
            scheduler_version=welcome.scheduler_version,
            policy=session.policy,
            transport=enum_word(scheduler_pb2.Transport.DESCRIPTOR, welcome.transport),
            transport_reason=welcome.transport_reason,
            lane=session.offer.lane,
            epoch=session.offer.epoch,
            role=role,
            comparison=comparison,
            given_up_for=given_up_for,
            policy_failures=_policy_failures(session.heard),
        )

    @property
    def active(self) -> bool:
        """Whether its decisions are followed."""
        return self.role == scheduler_pb2.LANE_ROLE_ACTIVE

    def to_message(self) -> executor_pb2.AttachedScheduler:
        """For the executor's own API."""
        return executor_pb2.AttachedScheduler(
            name=self.scheduler_name,
            version=self.scheduler_version,
            target=self.target,
            transport=scheduler_pb2.Transport.Value(f"TRANSPORT_{self.transport.upper()}"),
            transport_reason=self.transport_reason,
            lane=self.lane,
            epoch=self.epoch,
            active=self.active,
            policy=self.policy,
            role=self.role,
            comparison=self.comparison,
            given_up_for=self.given_up_for,
            policy_failures=self.policy_failures,
        )

    def to_member(self) -> scheduler_pb2.LaneMember:
        """For the other schedulers of this executor."""
        return scheduler_pb2.LaneMember(
            lane=self.lane,
            scheduler_name=self.scheduler_name,
            scheduler_version=self.scheduler_version,
            role=self.role,
            policy=self.policy,
        )

    def log_fields(self) -> dict[str, object]:
        """For the line that says that it attached."""
        reason = {"because": self.transport_reason} if self.transport_reason else {}
        return {
            "scheduler": self.scheduler_name,
            "version": self.scheduler_version,
            "transport": self.transport,
            **reason,
            "policy": policy_text(self.policy),
            "lane": self.lane,
            "active": self.active,
        }


def _policy_failures(
    heard: scheduler_pb2.SchedulerHeartbeat,
) -> scheduler_pb2.PolicyFailures | None:
    return heard.policy_failures if heard.HasField("policy_failures") else None
