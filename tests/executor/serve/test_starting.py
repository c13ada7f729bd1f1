"""An executor that is told to end while it is built leaves, whatever its builder is doing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from specsched_executor.serve.starting import build_unless_told_to_end
from specsched_protocol.ending import EndSignal


@pytest.fixture
def end() -> Iterator[EndSignal]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield EndSignal()
    for number, handler in before.items():
        signal.signal(number, handler)


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_what_is_built_is_returned(end: EndSignal) -> None:
    discarded: list[str] = []
    built = build_unless_told_to_end(lambda: "executor", end, discard=discarded.append)
    assert (built, discarded) == ("executor", [])


def test_what_goes_wrong_is_raised(end: EndSignal) -> None:
    def build() -> str:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        build_unless_told_to_end(build, end, discard=len)


def test_a_builder_that_nothing_interrupts_is_left(end: EndSignal) -> None:
    may_finish = threading.Event()

    def build() -> str:
        _terminate()
        may_finish.wait(60)
        return "executor"

    assert build_unless_told_to_end(build, end, discard=len) is None
    assert not may_finish.is_set()
    may_finish.set()


def test_what_is_built_all_the_same_is_put_away(end: EndSignal) -> None:
    def build() -> str:
        _terminate()
        return "executor"

    discarded: list[str] = []
    assert build_unless_told_to_end(build, end, discard=discarded.append) is None
    assert discarded == ["executor"]


def test_a_signal_from_before_counts(end: EndSignal) -> None:
    _terminate()
    assert build_unless_told_to_end(lambda: "executor", end, discard=len) is None
