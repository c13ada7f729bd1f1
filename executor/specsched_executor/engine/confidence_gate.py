"""The two-step rule, held by construction.

A draft may be admitted only on what was known before it was sampled (arXiv 2607.05147, appendix A:
otherwise 0.70/0.30 becomes 0.85/0.15). So confidences of the drafts that step t verifies may reach
a scheduler only once the plan for t has been read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from specsched_protocol.plan import (
    ConfidenceRows,
    FallbackReason,
    PlanRequest,
    StepDecision,
    StepReport,
)

from specsched_executor.transport.base import PatientTransport, PlanTransport, StandIn

__all__ = ["ConfidenceGate", "GateError"]

NUM_STEPS_APART = 2
"""A plan for step t uses confidences of step t - 2 or older."""


class GateError(RuntimeError):
    """The engine asked the gate for something in the wrong order: a bug, never a user's error."""


class ConfidenceGate:
    """The engine's only way to its transport.

    A step calls `read_plan`, `publish`, `withhold`, in this order. Confidences given to `withhold`
    at the end of step s (drafts that s + 1 verifies) leave with the first `publish` after
    `read_plan(s + 1)`, which asks for the plan of s + 2.
    """

    def __init__(self, transport: PlanTransport, max_budget: int) -> None:
        self._transport = transport
        self._patient = transport if isinstance(transport, PatientTransport) else None
        self._max_budget = max_budget
        self._withheld: ConfidenceRows | None = None
        self._last_read_step_id = 0

    def read_plan(self, step_id: int, until_ns: int = 0) -> StepDecision | FallbackReason:
        """The decision for `step_id`, checked; from here on its drafts' confidences may leave.

        until_ns: how long one that is not there yet may be watched for, CLOCK_MONOTONIC; 0: not.
        """
        if until_ns and self._patient is not None:
            self._patient.await_decision(step_id, until_ns)
        answer = self._transport.read(step_id)
        self._last_read_step_id = step_id
        if isinstance(answer, FallbackReason):
            return answer
        return self._checked(answer, step_id)

    def stand_in(self, step_id: int) -> StepDecision | None:
        """This process's own decision for a step without a plan, checked like one; None: none."""
        if not isinstance(self._transport, StandIn):
            return None
        decision = self._transport.stand_in(step_id)
        answer = None if decision is None else self._checked(decision, step_id)
        return answer if isinstance(answer, StepDecision) else None

    def publish(self, make_request: Callable[[int], PlanRequest]) -> PlanRequest:
        """Ask for the plan of the step after the one whose plan was read last.

        `make_request` gets the source step. Raises GateError for a request of another step.
        """
        step_id = self._last_read_step_id + 1
        source_step_id = step_id - NUM_STEPS_APART
        request = make_request(source_step_id)
        if request.step_id != step_id or request.source_step_id != source_step_id:
            raise GateError(
                f"plan request for step {request.step_id} from {request.source_step_id}; the plan"
                f" read last allows {step_id} from {source_step_id}"
            )
        rows, self._withheld = self._withheld, None
        if rows is not None and rows.source_step_id > source_step_id:
            raise GateError(
                f"confidences of step {rows.source_step_id} must not plan step {step_id}"
            )
        has_rows = rows is not None and len(rows.slot_id) > 0
        self._transport.publish(rows if has_rows else None, request)
        return request

    def withhold(self, rows: ConfidenceRows) -> None:
        """Keep the confidences of the drafts just made until the plan that judges them is read."""
        self._withheld = rows

    def report(self, report: StepReport) -> None:
        """Pass a finished step on."""
        self._transport.report(report)

    def _checked(self, decision: StepDecision, step_id: int) -> StepDecision | FallbackReason:
        if decision.step_id != step_id:
            return FallbackReason.LATE
        if decision.source_step_id > step_id - NUM_STEPS_APART:
            return FallbackReason.STALE_SOURCE
        in_range = 0 <= decision.budget <= self._max_budget
        if not in_range or decision.max_verify_len < 0 or decision.next_draft_tokens < 0:
            return FallbackReason.IMPOSSIBLE
        return decision


def no_rows(source_step_id: int, max_draft_tokens: int) -> ConfidenceRows:
    """Confidences of a step that drafted nothing."""
    nobody = np.zeros(0, dtype=np.uint32)
    nothing = np.zeros((0, max_draft_tokens), dtype=np.float32)
    return ConfidenceRows(source_step_id, nobody, nobody, nobody, nothing)
