"""No scheduler at all: every step falls back."""

from __future__ import annotations

from specsched_protocol.plan import (
    ConfidenceRows,
    FallbackReason,
    PlanRequest,
    StepDecision,
    StepReport,
)

__all__ = ["NoTransport"]


class NoTransport:
    """A PlanTransport that carries nothing and never has a decision."""

    def publish(self, rows: ConfidenceRows | None, request: PlanRequest) -> None:
        """Nobody to ask."""

    def read(self, step_id: int) -> StepDecision | FallbackReason:  # noqa: ARG002 - the seam
        """Always NO_SCHEDULER."""
        return FallbackReason.NO_SCHEDULER

    def report(self, report: StepReport) -> None:
        """Nobody to tell."""

    def close(self) -> None:
        """Nothing to release."""
