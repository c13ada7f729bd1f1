"""What telemetry asks of an attachment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.decision.cost import CostModel, CostTable

from .attachment import AttachmentTelemetry

__all__ = ["AttachmentView", "Facts"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is the same for all attachments. policy: as in options."""

    name: str
    version: str
    policy: str
    num_attached: int
    is_learning_frozen: bool


class AttachmentView(Protocol):
    """Every member may be used from any thread."""

    @property
    def slot(self) -> int:
        """Its number."""

    @property
    def hello(self) -> pb.Hello:
        """What the executor said of itself."""

    @property
    def telemetry(self) -> AttachmentTelemetry:
        """What was seen of it."""

    @property
    def table(self) -> CostTable:
        """What steps are priced by."""

    @property
    def num_lost_confidences(self) -> int:
        """Steps whose confidences could not be kept."""

    @property
    def num_publications(self) -> int:
        """Times that decisions began to go by something newly learned."""

    @property
    def num_probes(self) -> int:
        """Steps asked for to see a cost again."""

    @property
    def num_learning_failures(self) -> int:
        """Times that learning failed."""

    def status(self) -> pb.AttachmentStatus:
        """What GetStatus tells of it."""

    def latencies(self) -> Sequence[tuple[float, int]]:
        """(seconds from seeing a request to its decision, how many took so long)."""

    def learned_cost(self) -> tuple[CostModel, bool]:
        """The profile, and whether it is used as corrected; may wait for a fit."""
