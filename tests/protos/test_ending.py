"""A process is told to end once, wherever it is, and ends at once when it says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from specsched_protocol.ending import EndSignal

BUSY = """
import threading
from specsched_protocol.ending import end_process

threading.Thread(target=threading.Event().wait).start()  # no daemon: an exit would wait for it
print("last words", end="")
end_process(3)
"""


@pytest.fixture
def end() -> Iterator[EndSignal]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield EndSignal()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_listens_is_told_of_each_signal(end: EndSignal, number: signal.Signals) -> None:
    told: list[str] = []
    end.tell(lambda: told.append("a"))
    assert not end.has_come
    os.kill(os.getpid(), number)
    assert (end.has_come, told) == (True, ["a"])
    os.kill(os.getpid(), number)
    assert told == ["a", "a"]


def test_who_listens_late_is_told_of_what_came_before(end: EndSignal) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    told: list[str] = []
    end.tell(lambda: told.append("b"))
    assert told == ["b"]


def test_no_thread_is_waited_for_and_no_output_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "last words", "")
