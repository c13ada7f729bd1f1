"""Figures of `specsched top` at the edges: processes that come, go, restart or are elsewhere.

What it tells of processes that work is tried on real ones, in tests/integration/test_operating.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from smg_grpc_proto import vllm_engine_pb2 as pb
from specsched_client.cli._console import bar_line, sparkline
from specsched_client.cli._status_report import ExecutorReport, Report, SchedulerReport
from specsched_client.cli.top.feed import Reading
from specsched_client.cli.top.figures import make_frame
from specsched_client.cli.top.frame import ExecutorFrame, Frame, StepFrame
from specsched_client.cli.top.view import draw
from specsched_protocol.v1 import executor_pb2, plan_pb2, scheduler_pb2

from tests.clients.conftest import FakeScheduler, Run

NOBODY = "127.0.0.1:1"


def executor(
    counters: executor_pb2.StepCounters | None = None,
    *schedulers: executor_pb2.AttachedScheduler,
) -> ExecutorReport:
    return ExecutorReport(
        health=pb.HealthCheckResponse(healthy=True, message="serving"),
        model=pb.GetModelInfoResponse(served_model_name="tiny"),
        server=pb.GetServerInfoResponse(uptime_seconds=12),
        load=pb.SchedulerLoad(num_running_reqs=3, max_running_requests=4, token_usage=0.25),
        counters=counters,
        schedulers=executor_pb2.ListSchedulersResponse(schedulers=schedulers),
    )


def scheduler(num_decisions: int) -> SchedulerReport:
    counters = scheduler_pb2.PlannerCounters(num_decisions=num_decisions, plan_us_p50=20)
    status = scheduler_pb2.GetStatusResponse(
        version="1",
        policy=plan_pb2.PolicySpec(name="off"),
        attachments=[scheduler_pb2.AttachmentStatus(counters=counters)],
    )
    return SchedulerReport(status, is_serving=True)


def reading(
    at_s: float, told: ExecutorReport | str, **schedulers: SchedulerReport | str
) -> Reading:
    return Reading(at_s, Report("host:1", told, schedulers), {})


def counted(num_steps: int, **late: int) -> executor_pb2.StepCounters:
    return executor_pb2.StepCounters(
        num_steps=num_steps,
        num_planned_steps=num_steps // 2,
        num_output_tokens=3 * num_steps,
        num_verified_tokens=4 * num_steps,
        num_accepted_tokens=num_steps,
        num_fallback_steps=late,
    )


def steps_of(frame: Frame) -> StepFrame:
    assert isinstance(frame.executor, ExecutorFrame)
    assert frame.executor.steps is not None
    return frame.executor.steps


def shown(frame: Frame, width: int = 100) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(draw(frame))
    return capture.get()


def test_figures_are_those_of_the_interval() -> None:
    before = reading(10.0, executor(counted(100, late=7)))
    now = reading(12.0, executor(counted(300, late=57, torn=50)))
    steps = steps_of(make_frame(now, before))
    assert (steps.steps_per_second, steps.output_tokens_per_second) == (100, 300)
    assert (steps.tokens_per_step, steps.verified, steps.accepted) == (3, 4, 1)
    assert steps.accepted_share == 0.25
    assert steps.planned_share == 0.5
    assert steps.fallbacks == {"late": 50, "torn": 50}
    assert "50.0% in time; fallbacks: 50 late, 50 torn" in shown(make_frame(now, before))


def test_an_executor_that_started_anew_counts_from_zero() -> None:
    before = reading(10.0, executor(counted(1000, late=500)))
    steps = steps_of(make_frame(reading(11.0, executor(counted(40))), before))
    assert steps.steps_per_second == 40
    assert steps.fallbacks == {}


def test_without_steps_there_are_no_shares() -> None:
    same = counted(10)
    frame = make_frame(reading(2.0, executor(same)), reading(1.0, executor(same)))
    steps = steps_of(frame)
    assert steps.tokens_per_step is None
    assert steps.planned_share is None
    assert "- in time; fallbacks: none" in shown(frame)


@pytest.mark.parametrize("before", [None, reading(1.0, "nobody answers")])
def test_a_first_reading_has_no_interval(before: Reading | None) -> None:
    frame = make_frame(reading(2.0, executor(counted(5))), before)
    assert isinstance(frame.executor, ExecutorFrame)
    assert frame.executor.steps is None
    assert "3 of 4, 0 waiting" in shown(frame)


def test_one_that_does_not_answer_is_told_and_the_other_is_shown() -> None:
    before = reading(1.0, "nobody answers at host:1", blue=scheduler(10))
    frame = make_frame(reading(2.0, "nobody answers at host:1", blue=scheduler(60)), before)
    (blue,) = frame.lanes
    assert (blue.decisions_per_second, blue.policy) == (50, "off")
    assert frame.anyone_answered
    assert "nobody answers at host:1" in shown(frame)

    frame = make_frame(reading(2.0, executor(counted(5)), blue="it says nothing"), before)
    assert frame.lanes[0].role == "unreachable"
    assert "blue: it says nothing" in shown(frame)
    assert not make_frame(reading(2.0, "nobody", blue="nothing"), None).anyone_answered


def test_a_scheduler_elsewhere_is_known_from_the_executor_the_followed_one_comes_first() -> None:
    far = executor_pb2.AttachedScheduler(
        name="host:50061",
        active=True,
        transport=scheduler_pb2.TRANSPORT_INLINE,
        policy=plan_pb2.PolicySpec(name="ratio"),
    )
    near = executor_pb2.AttachedScheduler(
        name="blue",
        role=scheduler_pb2.LANE_ROLE_SHADOW,
        comparison=scheduler_pb2.LaneComparison(num_steps=4, num_same_decisions=3),
    )
    told = executor(counted(5), near, far)
    frame = make_frame(reading(1.0, told, blue=scheduler(1), green=scheduler(1)), None)
    assert [(lane.name, lane.role) for lane in frame.lanes] == [
        ("host:50061", "active"),
        ("blue", "shadow"),
        ("green", "attached"),
    ]
    assert frame.lanes[1].same_share == 0.75


@pytest.mark.parametrize("width", [60, 80, 200])
def test_facts_are_there_at_any_width(width: int) -> None:
    frame = make_frame(reading(2.0, executor(counted(9)), blue="gone"), None)
    text = " ".join(shown(frame, width).split())
    assert "serving, tiny, up 12 s" in text
    assert max(len(line) for line in shown(frame, width).splitlines()) <= width


def test_lines_and_bars() -> None:
    assert sparkline([0, 1, 2, 4], 3) == "▃▅█"
    assert sparkline([0, 0], 5) == "▁▁"
    assert sparkline([], 5) == ""
    assert (bar_line(0.5, 4), bar_line(7, 2), bar_line(-1, 2)) == ("██░░", "██", "░░")


# ===================== The command =====================


def top(run: Run, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    once = ("--count", "1", "--interval", "0.1", "--json")
    code, out, err = run("top", "--target", NOBODY, *once, *arguments)
    assert "error:" not in err  # gRPC may print there of an event loop that another test closed
    return code, [json.loads(line) for line in out.splitlines()]


def test_when_nobody_answers_the_status_says_so(run: Run) -> None:
    code, (frame,) = top(run)
    assert code == 3
    assert "nobody answers" in frame["executor"]
    assert frame["lanes"] == []


def test_one_scheduler_of_several_is_watched(
    run: Run, start_scheduler: Callable[..., FakeScheduler]
) -> None:
    start_scheduler("blue")
    start_scheduler("green")
    code, (frame,) = top(run)
    assert code == 0
    assert [lane["name"] for lane in frame["lanes"]] == ["blue", "green"]
    code, (frame,) = top(run, "--scheduler", "green")
    assert [lane["name"] for lane in frame["lanes"]] == ["green"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("--interval", "0"), "--interval"), (("--count", "0"), "--count")],
)
def test_what_makes_no_sense_is_refused(run: Run, arguments: tuple[str, ...], named: str) -> None:
    code, out, err = run("top", *arguments)
    assert (code, out) == (2, "")
    assert named in err
