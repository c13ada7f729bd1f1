"""Compiling everything a planner runs, before anybody relies on it."""

from __future__ import annotations

import os
import time

import numpy as np
from specsched_protocol.plan import NO_BUDGET_CAP
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.decision.calibration import identity_table
from specsched_scheduler.decision.codes import ModelState, PolicyCode
from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.decision.step import StepPlan
from specsched_scheduler.planner._learned import Lesson
from specsched_scheduler.planner.inline import InlineFeed
from specsched_scheduler.planner.planner import Planner
from specsched_scheduler.planner.records import PlannedStep, PolicySelection

__all__ = ["WarmUpError", "warm_up"]

_COST_MODEL = CostModel(verify={1: [1.0], 2: [1.5], 4: [2.0]}, capture_limit=4)
_TIMEOUT_S = 900.0
"""Compiling takes minutes on a busy machine; beyond this the planner hangs."""
_POLL_S = 0.005


class WarmUpError(RuntimeError):
    """The planner did not answer its own request: it cannot serve."""


def warm_up() -> None:
    """Plan one step by the compiled policies and one by a policy in Python, on private memory.

    Takes seconds where nothing is cached. Raises WarmUpError if the planner does not answer.
    """
    compiled = PolicySelection(policy_id=0, code=PolicyCode.THROUGHPUT)
    in_python = PolicySelection(policy_id=0, code=PolicyCode.PYTHON, decide=_verify_nothing)
    for policy in (compiled, in_python):
        _plan_once(policy)


def _plan_once(policy: PolicySelection) -> None:
    # Its regions are mapped as those of an executor are: numba compiles apart for read-only arrays.
    model = pb.ModelFacts(max_requests=2, max_draft_tokens=2)
    feed = InlineFeed(pb.Hello(boot_id=os.urandom(16), model=model, epoch=1))
    planner = Planner(feed.regions, policy, _COST_MODEL)
    feed.accept(_steps())
    planner.start()
    try:
        _await_decision(planner)
        planner.drain_reports()
        planner.drain_confidences()
        planner.ask_probe(0)
        k = model.max_draft_tokens
        planner.publish(Lesson(identity_table(k), _COST_MODEL.compile()))
    finally:
        planner.stop()


def _await_decision(planner: Planner) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not planner.recent_decisions():
        if not planner.is_running:
            raise WarmUpError("the planner ended with the error above")
        if time.monotonic() > deadline:
            raise WarmUpError(f"the planner does not answer: {planner.counters()}")
        time.sleep(_POLL_S)


def _steps() -> pb.InlineSteps:
    """A step of one request with two drafts, and the report of one before."""
    one, two = (np.uint32(number).tobytes() for number in (1, 2))
    zero_row = bytes(4)
    return pb.InlineSteps(
        plan_request=pb.InlinePlanRequest(
            publication=1,
            step_id=2,
            num_other_tokens=1,
            slot_id=zero_row,
            generation=one,
            num_draft_tokens=two,
            samples=b"\1",
            weight=np.float32(1.0).tobytes(),
            context_tokens=zero_row,
            is_greedy=b"\1",
            num_confidences=two,
            confidence=np.full(2, 0.5, dtype=np.float32).tobytes(),
        ),
        reports=[
            pb.InlineReport(
                step_id=1,
                slot_id=zero_row,
                generation=one,
                num_verified=two,
                num_accepted=one,
                teaches=b"\1",
            )
        ],
    )


def _verify_nothing(_step: PlannedStep) -> StepPlan:
    return StepPlan(0, NO_BUDGET_CAP, ModelState.OK, 0, 0, 0, 0.0, 0.0)
