"""What `specsched lanes`, `promote` and `drain` print of the answers they get."""

from __future__ import annotations

import pytest
from specsched_client.cli._lane_views import print_changes, print_lanes
from specsched_protocol.v1 import executor_pb2, plan_pb2, scheduler_pb2

HALF = plan_pb2.PolicySpec(name="half", parameters={"share": 0.3})
THROUGHPUT = plan_pb2.PolicySpec(name="throughput")


def told_by_promote(capsys: pytest.CaptureFixture[str], **policies: plan_pb2.PolicySpec) -> str:
    reply = scheduler_pb2.LaneReply(
        done=True, previous_scheduler="v1", active_scheduler="v2", step_id=7, **policies
    )
    change = scheduler_pb2.LaneChange(executor_name="e", reply=reply)
    assert print_changes("v2", [change], as_json=False)
    return capsys.readouterr().out.strip()


def test_promote_says_that_the_policy_changes(capsys: pytest.CaptureFixture[str]) -> None:
    told = told_by_promote(capsys, previous_policy=HALF, active_policy=THROUGHPUT)
    assert told == "e: v1 -> v2 from step 7; policy changes from half(share=0.3) to throughput"


@pytest.mark.parametrize("policies", [{}, {"previous_policy": HALF, "active_policy": HALF}])
def test_promote_says_nothing_of_a_policy_that_stays_or_is_not_told(
    capsys: pytest.CaptureFixture[str], policies: dict[str, plan_pb2.PolicySpec]
) -> None:
    assert told_by_promote(capsys, **policies) == "e: v1 -> v2 from step 7"


def test_lanes_tell_of_a_policy_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    error = "policy half(share=0.3) raised KeyError: [/x] of list[int] :x: (half.py:3)"
    failures = scheduler_pb2.PolicyFailures(num_requests=30, policy=HALF, error=error)
    failing = executor_pb2.AttachedScheduler(name="v1", policy=HALF, policy_failures=failures)
    sound = executor_pb2.AttachedScheduler(name="v2", policy=THROUGHPUT)
    answer = executor_pb2.ListSchedulersResponse(schedulers=[failing, sound])
    print_lanes(answer, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "policy errors" in line] == [
        f"late by v1: 30 policy errors, the newest: {error}"
    ]


def test_what_a_later_version_says_is_shown_as_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    later = executor_pb2.AttachedScheduler(name="v9", role=98, transport=99)
    print_lanes(executor_pb2.ListSchedulersResponse(schedulers=[later]), as_json=False)
    told = capsys.readouterr().out
    assert "unknown 98" in told
    assert "unknown 99" in told
