"""Attachments as telemetry sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.decision.cost import CostModel, CostTable
from specsched_scheduler.telemetry import AttachmentTelemetry, Facts, SchedulerTelemetry

from .attachment import Attachment
from .attachments import Attachments

__all__ = ["AttachedView", "describe"]


class AttachedView:
    """See specsched_scheduler.telemetry.AttachmentView."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._planning = attachment.planning

    @property
    def slot(self) -> int:
        """Its number."""
        return self._attachment.slot

    @property
    def hello(self) -> pb.Hello:
        """What the executor said of itself."""
        return self._attachment.hello

    @property
    def telemetry(self) -> AttachmentTelemetry:
        """What was seen of it."""
        return self._planning.telemetry

    @property
    def table(self) -> CostTable:
        """What steps are priced by."""
        return self._planning.table

    @property
    def num_lost_confidences(self) -> int:
        """Steps whose confidences could not be kept."""
        return self._planning.num_lost_confidences

    @property
    def num_publications(self) -> int:
        """Times that decisions began to go by something newly learned."""
        return self._planning.learning.num_publications

    @property
    def num_probes(self) -> int:
        """Steps asked for to see a cost again."""
        return self._planning.learning.num_probes

    @property
    def num_learning_failures(self) -> int:
        """Times that learning failed."""
        return self._planning.learning.num_failures

    def status(self) -> pb.AttachmentStatus:
        """What GetStatus tells of it."""
        return self._attachment.status()

    def latencies(self) -> Sequence[tuple[float, int]]:
        """(seconds from seeing a request to its decision, how many took so long)."""
        return self._planning.latencies()

    def learned_cost(self) -> tuple[CostModel, bool]:
        """The profile, and whether it is used as corrected; may wait for a fit."""
        return self._planning.learned_cost()


def describe(name: str, version: str, attachments: Attachments) -> SchedulerTelemetry:
    """The telemetry of a scheduler and its attachments."""

    def facts() -> Facts:
        return Facts(
            name=name,
            version=version,
            policy=str(attachments.policy),
            num_attached=attachments.slots.num_taken,
            is_learning_frozen=attachments.learned.is_frozen,
        )

    def views() -> Iterator[AttachedView]:
        return map(AttachedView, attachments)

    return SchedulerTelemetry(facts, views)
