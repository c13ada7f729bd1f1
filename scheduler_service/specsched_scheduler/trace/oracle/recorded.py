"""Steps that a scheduler recorded, as an oracle sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from specsched_protocol.hindsight import StepOutcome, ms_by_budget
from specsched_protocol.plan import NO_BUDGET_CAP

from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.decide import decide
from specsched_scheduler.decision.inputs import DecisionOutcome
from specsched_scheduler.decision.reference import repair, verify_ms
from specsched_scheduler.decision.wire import cost_model_from_message
from specsched_scheduler.decision.workspace import new_running_mean
from specsched_scheduler.policies import BuiltPolicy
from specsched_scheduler.trace.reader import RecordedStep, TraceFile

from .step import OracleStep, share_out

__all__ = ["recorded_steps"]

Floats = npt.NDArray[np.float64]


def recorded_steps(files: Iterable[TraceFile], policy: BuiltPolicy) -> Iterator[OracleStep]:
    """Steps with two choices: what was run, and what `policy` decides.

    A step is decided by confidences of older drafts than it verifies; those of its own drafts come
    with the next decision, and are joined here. Steps without outcome or without them are left out.
    """
    for file in files:
        table = cost_model_from_message(file.cost, file.max_draft_tokens).compile()
        prior = new_running_mean(file.max_draft_tokens)
        own = {step.source_step_id + 1: step for step in file.steps}
        for step in file.steps:
            decision = decide(step.inputs, policy, table, prior)
            drafts = own.get(step.step_id)
            if drafts is None or step.outcome is None:
                continue
            confidence = _confidence(drafts, step.outcome_request)
            if confidence is not None:
                yield _step(step, step.outcome, confidence, table, decision)


def _confidence(drafts: RecordedStep, request: npt.NDArray[np.int64]) -> Floats | None:
    """Of the drafts that the requests verify, float64 [N, k]; None where one is not told of."""
    known, ours, theirs = np.intersect1d(request, drafts.request, return_indices=True)
    if len(known) < len(request):
        return None
    confidence = np.empty((len(request), drafts.inputs.max_draft_tokens))
    confidence[ours] = repair(drafts.inputs).confidence[theirs]
    return confidence


def _step(
    step: RecordedStep,
    outcome: StepOutcome,
    confidence: Floats,
    table: CostTable,
    decision: DecisionOutcome,
) -> OracleStep:
    survival = np.asarray(np.cumprod(confidence, axis=1), dtype=np.float64)
    num_drafts = outcome.num_drafts
    rows = np.arange(outcome.num_other_tokens + int(num_drafts.sum()) + 1)
    prices = verify_ms(table, rows) if len(table.verify_ms) else np.zeros(len(rows))
    most = max(step.inputs.max_budget, int(outcome.num_verified.sum()))
    cap = NO_BUDGET_CAP if decision.max_verify_len is None else decision.max_verify_len
    score = outcome.weight[:, None] * survival
    return OracleStep(
        survival=survival,
        num_drafts=num_drafts,
        num_verified=outcome.num_verified,
        num_accepted=outcome.num_accepted,
        group=step.outcome_request,
        ms=ms_by_budget(outcome, prices)[: most + 1],
        choices=(outcome.num_verified, share_out(score, num_drafts, decision.budget, cap)),
    )
