"""A failure that comes back is counted each time and logged seldom."""

from __future__ import annotations

from specsched_protocol.logs import LogSampler
from specsched_protocol.recurring_failure import RecurringFailure
from structlog.testing import capture_logs


def broken(value: int) -> None:
    if value < 0:
        raise ValueError(f"{value} is no count")
    raise ValueError(f"{value} is none either")


def told(failure: RecurringFailure, value: int) -> None:
    try:
        broken(value)
    except ValueError as error:
        failure.tell(error, turn=value)


def test_the_first_has_its_traceback_and_others_are_counted_ever_more_seldom() -> None:
    now = 0.0
    failure = RecurringFailure("turning failed", LogSampler(1.0, 64.0, clock=lambda: now))
    with capture_logs() as logs:
        for turn in range(6400):  # ten a second
            now = turn / 10
            told(failure, turn)
    assert failure.num_failures == 6400
    first, *later = logs
    assert (first["event"], first["log_level"]) == ("turning failed", "error")
    assert (first["reason"], first["count"], first["turn"]) == (
        "ValueError: 0 is none either",
        1,
        0,
    )
    assert isinstance(first["exc_info"], ValueError)
    assert 0 < len(later) < 20
    assert not any("exc_info" in line for line in later)
    assert [line["count"] for line in later[:3]] == [10, 20, 40]


def test_a_failure_elsewhere_has_a_traceback_of_its_own() -> None:
    failure = RecurringFailure("turning failed", LogSampler(clock=lambda: 0.0))
    with capture_logs() as logs:
        for value in (1, -1, 2, -2):
            told(failure, value)
    assert [line["turn"] for line in logs] == [1, -1]
    assert all("exc_info" in line for line in logs)
    assert failure.num_failures == 4


def test_an_error_that_was_never_raised_is_told_too() -> None:
    failure = RecurringFailure("turning failed")
    with capture_logs() as logs:
        failure.tell(RuntimeError("as it is"))
    (line,) = logs
    assert line["reason"] == "RuntimeError: as it is"
