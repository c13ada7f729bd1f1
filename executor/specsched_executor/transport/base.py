"""The seam between the engine and whatever carries plans: shared memory, a stream, this process."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from specsched_protocol.plan import (
    ConfidenceRows,
    FallbackReason,
    PlanRequest,
    StepDecision,
    StepReport,
)

__all__ = ["PatientTransport", "PlanTransport", "StandIn"]


class PlanTransport(Protocol):
    """Carries one executor's plan requests out and decisions back. No method ever blocks."""

    def publish(self, rows: ConfidenceRows | None, request: PlanRequest) -> None:
        """Ask for the plan of `request.step_id`, making `rows` known along with it."""

    def read(self, step_id: int) -> StepDecision | FallbackReason:
        """The decision for `step_id` if it is there within a bounded number of tries."""

    def report(self, report: StepReport) -> None:
        """Tell what a finished step cost; may be dropped, and counted as such."""

    def close(self) -> None:
        """Release what the transport holds; idempotent."""


@runtime_checkable
class PatientTransport(Protocol):
    """A transport that can watch for a decision while the device is busy with another step."""

    def await_decision(self, step_id: int, until_ns: int) -> None:
        """Return as soon as the decision for `step_id` is there to read, at `until_ns` at last.

        until_ns: of CLOCK_MONOTONIC. Returns at once where nobody answers any more.
        """


@runtime_checkable
class StandIn(Protocol):
    """A transport that can decide a step here when no scheduler did."""

    def stand_in(self, step_id: int) -> StepDecision | None:
        """This process's own decision for a step that was asked about; None: it has none."""
