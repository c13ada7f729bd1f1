"""Steps put together from recorded drafts whose outcomes are all known.

The requests of a recording are answered `num_requests` at a time, each from somewhere in its middle
at first; in every step each verifies its next recorded draft, whatever was decided. So no decision
changes what follows, and schedule and oracles are judged on the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.decide import decide
from specsched_scheduler.decision.inputs import DecisionInputs
from specsched_scheduler.decision.reference import draft_ms, verify_ms
from specsched_scheduler.decision.workspace import new_running_mean
from specsched_scheduler.learning.calibration.observations import Observations
from specsched_scheduler.learning.calibration.offline import held_out_survival
from specsched_scheduler.learning.errors import TraceError
from specsched_scheduler.policies import BuiltPolicy

from .step import OracleStep, share_out

__all__ = ["learned_survival", "steps_of_drafts"]

_SEED = 20260705
_NO_CAP = np.iinfo(np.int64).max

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def learned_survival(recorded: Observations) -> Floats:
    """Survivals as a scheduler learns to calibrate them, by fits that leave out the request.

    float64 [n, k]; 0 where there is no draft.
    """
    return np.nan_to_num(held_out_survival(recorded), nan=0.0)


def steps_of_drafts(
    recorded: Observations,
    survival: Floats,
    policy: BuiltPolicy,
    table: CostTable,
    *,
    num_requests: int,
) -> Iterator[OracleStep]:
    """Steps with one choice, that of `policy`, decided by the drafts before those it verifies.

    survival: float64 [n, k] of the recorded drafts. A request's first step has no confidences. The
    steps end when a request ends and none is left to follow it: no draft is used twice. Raises
    TraceError where fewer requests than that were recorded.
    """
    confidence = _conditional(survival)
    num_drafts = np.isfinite(recorded.logit).sum(axis=1)
    prior = new_running_mean(recorded.max_draft_tokens)
    for now, before in _walk(recorded.group, num_requests):
        inputs = DecisionInputs(
            confidence=confidence[before],
            num_draft_tokens=num_drafts[now],
            has_confidence=before >= 0,
            samples=np.ones(num_requests, dtype=np.bool_),
            weight=np.ones(num_requests),
            context_tokens=np.full(num_requests, int(table.profiled_context)),
            num_other_tokens=num_requests,
        )
        decision = decide(inputs, policy, table, prior)
        cap = _NO_CAP if decision.max_verify_len is None else decision.max_verify_len
        rows = num_requests + np.arange(int(num_drafts[now].sum()) + 1)
        drafting = draft_ms(table, num_requests, recorded.max_draft_tokens)
        yield OracleStep(
            survival=survival[now],
            num_drafts=num_drafts[now],
            num_verified=recorded.num_verified[now],
            num_accepted=recorded.num_accepted[now],
            group=recorded.group[now],
            ms=verify_ms(table, rows) + drafting,
            choices=(share_out(survival[now], num_drafts[now], decision.budget, cap),),
        )


def _conditional(survival: Floats) -> Floats:
    """The probability of each draft given those before it."""
    before = np.concatenate((np.ones((len(survival), 1)), survival[:, :-1]), axis=1)
    return np.divide(survival, before, out=np.zeros_like(survival), where=before > 0)


def _walk(group: Ints, num_requests: int) -> Iterator[tuple[Ints, Ints]]:
    """(rows of this step, rows of the step before or -1), int64 [num_requests] each."""
    rng = np.random.default_rng(_SEED)
    rows = np.argsort(group, kind="stable")
    begins = np.flatnonzero(np.diff(group[rows], prepend=group.min() - 1))
    ends = np.append(begins[1:], len(rows))
    waiting = iter(rng.permutation(len(begins)).tolist())
    answered = list(islice(waiting, num_requests))
    if len(answered) < num_requests:
        raise TraceError(f"{len(answered)} requests were recorded, too few for {num_requests}")
    at = rng.integers(begins[answered], ends[answered])
    is_first = np.ones(num_requests, dtype=np.bool_)
    while True:
        yield rows[at], np.where(is_first, -1, rows[at - 1])
        at, is_first = at + 1, np.zeros(num_requests, dtype=np.bool_)
        for done in np.flatnonzero(at == ends[answered]):
            following = next(waiting, None)
            if following is None:
                return
            answered[done] = following
            at[done], is_first[done] = begins[following], True
