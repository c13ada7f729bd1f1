"""A scheduler whose policy breaks on SIGUSR1: a real process, sound until then.

`python -m tests.integration.faulty_scheduler FAULT OPTIONS...`, where FAULT is one of

hang     the policy does not return any more; the rest of the process lives
budget   more than the drafts present
nan      expected tokens that are no number
length   a cap per request beyond k, and a negative one
step     decisions for another step
epoch    decisions of another opening of the lane
"""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from typing import Any

from specsched_protocol.plan import NO_BUDGET_CAP
from specsched_protocol.shm.plan_arrays import STEP_ID
from specsched_scheduler import planner
from specsched_scheduler.commands import scheduler
from specsched_scheduler.decision.codes import PolicyCode
from specsched_scheduler.decision.step import StepPlan
from specsched_scheduler.planner import planner as planner_module
from specsched_scheduler.service import planning
from typer import run

is_broken = threading.Event()
sound_select = planning.select_policy
sound_publish = planner_module.publish_plan


def break_now(*_: object) -> None:
    is_broken.set()


def main() -> None:
    fault = sys.argv.pop(1)

    def decide(step: planner.PlannedStep) -> StepPlan:
        if is_broken.is_set() and fault == "hang":
            threading.Event().wait()
        plan = StepPlan(0, NO_BUDGET_CAP, 1, 0, 0, 0, 1.0, 1.0)
        if not is_broken.is_set():
            return plan
        changes: dict[str, Any] = {
            "budget": {"budget": 1 << 20},
            "nan": {"expected_tokens": float("nan")},
            "length": {"max_verify_len": -1},
        }.get(fault, {})
        return plan._replace(**changes)

    def select(policy: object, *, policy_id: int) -> planner.PolicySelection:
        selection = sound_select(policy, policy_id=policy_id)  # type: ignore[arg-type]
        return dataclasses.replace(selection, code=PolicyCode.PYTHON, decide=decide)

    def publish(memory: Any, settings: Any, state: Any, plan: Any) -> None:
        if is_broken.is_set() and fault == "step":
            state.request.fixed[STEP_ID] += 1000
        if is_broken.is_set() and fault == "epoch":
            settings = settings._replace(epoch=settings.epoch - 1)
        sound_publish(memory, settings, state, plan)

    planning.select_policy = select
    planner_module.publish_plan = publish
    signal.signal(signal.SIGUSR1, break_now)
    run(scheduler)


if __name__ == "__main__":
    main()
