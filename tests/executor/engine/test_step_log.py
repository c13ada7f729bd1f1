"""What an engine logs of its steps."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import structlog
from specsched_executor.drafters import NgramDrafter, NoDrafter
from specsched_executor.engine.step_log import StepLog
from specsched_protocol.logs import LogSampler
from specsched_protocol.plan import FallbackReason, StepReport
from structlog.testing import capture_logs

from tests.executor.engine.tiny import (
    Driver,
    SilentTransport,
    TableTarget,
    config,
    random_table,
)


@pytest.fixture
def down_to_debug() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    yield
    structlog.configure(**before)


def report(step_id: int, ms: float, rows: int = 8) -> StepReport:
    none = np.zeros(0, dtype=np.uint32)
    return StepReport(
        step_id=step_id,
        num_tokens=rows,
        padded_num_tokens=rows,
        num_prefill_tokens=0,
        num_sampling=1,
        asked_draft_tokens=0,
        context_tokens=0,
        draft_ms=0.0,
        verify_ms=ms,
        slot_id=none,
        generation=none,
        num_verified=none,
        num_accepted=none,
        teaches=np.zeros(0, dtype=np.bool_),
    )


def run(drafter: object, num_tokens: int = 200) -> int:
    """Serve a request with a scheduler that is too slow; how many steps that took."""
    target = TableTarget(random_table(6, 0), max_context_tokens=100_000)
    driver = Driver(
        target, drafter, SilentTransport(FallbackReason.LATE), config(num_kv_blocks=400)
    )
    result = driver.submit((1, 2), max_tokens=num_tokens, ignore_eos=True)
    driver.run()
    assert result.finish_reason == "length"
    return driver.loop.stats().num_steps


def test_ordinary_steps_are_told_at_debug_only(down_to_debug: None) -> None:
    with capture_logs() as lines:
        num_steps = run(NoDrafter(), 50)
    assert sum(line["event"] == "step" for line in lines) == num_steps
    assert all(line["log_level"] == "debug" for line in lines if line["event"] == "step")


def test_at_info_there_is_no_line_for_each_step() -> None:
    with capture_logs() as lines:
        num_steps = run(NgramDrafter(3))
    events = [line["event"] for line in lines]
    assert num_steps > 50
    # A step that a busy machine held up may be told, but once a second at most.
    assert set(events) <= {"step fell back", "slow step"}
    assert events.count("step fell back") >= 1, "nothing is decided in time here"
    assert len(events) < num_steps / 5


def test_a_fallback_is_told_with_its_reason_and_count() -> None:
    now = 0.0
    log = StepLog(LogSampler(clock=lambda: now))
    with capture_logs() as lines:
        for step in range(10):
            log.observe(report(step, 1.0), 3, FallbackReason.LATE)
        now = 1.5
        log.observe(report(10, 1.0), 3, FallbackReason.LATE)
        log.observe(report(11, 1.0), 4, FallbackReason.TORN)
        log.observe(report(12, 1.0), 4, None)
    told = [(line["step_id"], line["reason"], line["count"], line["budget"]) for line in lines]
    assert told == [(0, "late", 1, 3), (10, "late", 10, 3), (11, "torn", 1, 4)]
    assert {line["log_level"] for line in lines} == {"info"}


def test_that_there_is_no_scheduler_is_told_once_there_was_one() -> None:
    log = StepLog(LogSampler(clock=lambda: 0.0))
    with capture_logs() as lines:
        log.observe(report(0, 1.0), 3, FallbackReason.NO_SCHEDULER)
        assert lines == []
        log.observe(report(1, 1.0), 0, None)
        log.observe(report(2, 1.0), 0, FallbackReason.NO_SCHEDULER, has_drafts=False)
        assert lines == []
        log.observe(report(3, 1.0), 3, FallbackReason.NO_SCHEDULER)
    assert [(line["step_id"], line["reason"]) for line in lines] == [(3, "no_scheduler")]


def test_a_slow_step_is_one_far_above_its_like() -> None:
    log = StepLog(LogSampler(clock=lambda: 0.0))
    with capture_logs() as lines:
        for step in range(40):
            log.observe(report(step, 3.0 + step % 2, rows=8), 0, None)
            log.observe(report(step, 50.0, rows=512), 0, None)  # many rows: not slow
        log.observe(report(98, 12.0), 0, None)
        assert lines == []
        log.observe(report(99, 30.0), 0, None)
    (slow,) = lines
    assert (slow["event"], slow["log_level"], slow["step_id"]) == ("slow step", "warning", 99)
    assert 3.0 < slow["usual_ms"] < 5.0


def test_steps_that_stay_slow_become_usual() -> None:
    log = StepLog(LogSampler(0.0, 0.0, clock=lambda: 0.0))
    with capture_logs() as lines:
        for step in range(20):
            log.observe(report(step, 1.0), 0, None)
        for step in range(200):
            log.observe(report(step, 20.0), 0, None)
    assert 1 <= len(lines) < 80


def test_a_failed_step_names_itself_and_its_requests() -> None:
    class Broken(TableTarget):
        def forward(self, batch, kv_cache):
            raise ArithmeticError("broken")

    kept: list[dict[str, object]] = []

    def keep(_logger: object, _name: str, line: dict[str, object]) -> dict[str, object]:
        kept.append(dict(line))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    try:
        target = Broken(random_table(6, 0), max_context_tokens=100)
        driver = Driver(target, NoDrafter(), SilentTransport(), config(num_kv_blocks=40))
        driver.submit((1, 2), max_tokens=3)
        driver.submit((1, 2), max_tokens=3)
        driver.run()
    finally:
        structlog.configure(**before)
    failed = [line for line in kept if line["event"] == "step failed"]
    assert failed[0]["step_id"] == 1
    assert failed[0]["request_ids"] == ["r0", "r1"]
