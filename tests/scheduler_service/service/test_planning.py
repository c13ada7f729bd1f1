"""What begins with an attachment begins for no executor that is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.decision.errors import InvalidRequestError
from specsched_scheduler.learning.document import LearnedState
from specsched_scheduler.learning.errors import StateError
from specsched_scheduler.planner import PlannerConfig
from specsched_scheduler.policies import build_policy
from specsched_scheduler.service.learned import LearnedStates
from specsched_scheduler.service.planning import Planning
from specsched_scheduler.trace import StepRecorder

ONE_POSITION = pb.ClassCalibration(temperature=[1.0], intercept=[0.0])


@pytest.mark.parametrize(
    ("impossible", "refusal"),
    [
        (
            {"cost": plan_pb2.CostModel(verify=[plan_pb2.VerifyCost(tokens=1)])},
            InvalidRequestError,
        ),
        ({"calibration": pb.Calibration(sampled=ONE_POSITION)}, StateError),
    ],
)
def test_nothing_is_recorded_of_an_executor_that_is_refused(
    impossible: dict[str, Any], refusal: type[Exception]
) -> None:
    def open_recorder() -> StepRecorder:
        raise AssertionError("its thread and its file would be left")

    hello = pb.Hello(model=pb.ModelFacts(max_requests=4, max_draft_tokens=3), **impossible)
    nobody_known = LearnedStates(LearnedState(), is_frozen=False)
    with pytest.raises(refusal):
        Planning(
            SimpleNamespace(regions=None),
            hello,
            build_policy("throughput"),
            PlannerConfig(),
            nobody_known,
            open_recorder=open_recorder,
        )
