"""When patience ends."""

from __future__ import annotations

import pytest
from specsched_executor.attach.election import SwitchReason
from specsched_executor.attach.supervision import SupervisionConfig, failure_of
from specsched_executor.transport.lane_health import LaneHealth
from specsched_protocol.plan import FallbackReason

MS = 1_000_000
CONFIG = SupervisionConfig(failover_after_ms=500.0, min_fault_run=8)


def late(*at_ms: int) -> LaneHealth:
    health = LaneHealth()
    for ms in at_ms:
        health.fault(FallbackReason.LATE, ms * MS)
    return health


def failure(health: LaneHealth, *, followed_since_ms: int = 0, heard_ms: int = 10_000) -> object:
    return failure_of(health, followed_since_ms * MS, heard_ms * MS, CONFIG)


def test_long_without_a_plan_is_a_failure_and_the_stream_tells_which():
    health = late(*range(1000, 1600, 50))
    assert failure(health) is SwitchReason.LIVELOCKED
    assert failure(health, heard_ms=900) is SwitchReason.UNRESPONSIVE
    health.sound()
    assert failure(health) is None


@pytest.mark.parametrize(
    "health",
    [
        late(*range(1000, 1070, 10)),  # too few
        late(*range(1000, 1490, 10)),  # too short, however long nothing was asked afterwards
        late(1000, 3000),
    ],
)
def test_stall_is_none(health: LaneHealth):
    assert failure(health) is None


def test_steps_before_it_was_followed_do_not_count():
    health = late(*range(1000, 3000, 50))
    assert failure(health, followed_since_ms=3000) is None
    assert failure(health, followed_since_ms=2800) is None
    assert failure(health, followed_since_ms=2000) is SwitchReason.LIVELOCKED


def test_garbage_is_not_waited_for():
    health = LaneHealth()
    for reason in (FallbackReason.IMPOSSIBLE, FallbackReason.WRONG_EPOCH):
        health.fault(reason, 1)
    assert failure(health) is None
    health.fault(FallbackReason.STALE_SOURCE, 2)
    assert failure(health) is SwitchReason.GARBAGE
