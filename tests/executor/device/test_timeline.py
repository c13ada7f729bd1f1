"""What a step took, by itself and behind another one."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from specsched_executor.device import timeline as module
from specsched_executor.device.timeline import HostTimeline


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times: list[float] = []
    clock = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: times[next(clock)]))
    return times


def run(timeline: HostTimeline, previous: HostTimeline | None) -> None:
    timeline.follow(previous)
    timeline.mark_start()
    timeline.mark_verified()
    timeline.mark_drafted()
    timeline.mark_end()


def test_a_step_behind_another_one_takes_the_time_since_that_ended(now_s: list[float]) -> None:
    now_s += [1.0, 1.002, 1.003, 1.008, 1.010, 1.011]
    first, second = HostTimeline(), HostTimeline()
    run(first, None)
    run(second, first)
    assert (first.verify_ms, first.draft_ms) == pytest.approx((2.0, 1.0))
    assert (second.verify_ms, second.draft_ms) == pytest.approx((7.0, 1.0))


def test_a_step_behind_none_takes_its_own_time(now_s: list[float]) -> None:
    now_s += [1.0, 1.002, 1.003, 1.008, 1.010, 1.011]
    first, second = HostTimeline(), HostTimeline()
    run(first, None)
    run(second, None)
    assert second.verify_ms == pytest.approx(2.0)
