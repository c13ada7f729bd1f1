"""Progress where stderr is no terminal: the log is not silent for long."""

from __future__ import annotations

import threading
import time

import pytest
from specsched_executor.serve import progress
from specsched_executor.serve.progress import progress_bar
from structlog.testing import capture_logs

DEADLINE_S = 60


def test_what_takes_long_is_told_again_with_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_TELL_AGAIN_S", 0.01)
    with capture_logs() as logs, progress_bar("measuring") as move:
        _wait_for(logs, {"event": "still measuring"})
        move(3, 40)
        _wait_for(logs, {"event": "still measuring", "done": 3, "total": 40})
    assert "done" not in logs[0]
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_what_is_soon_over_tells_nothing() -> None:
    with capture_logs() as logs, progress_bar("measuring") as move:
        move(1, 1)
    assert logs == []


def _wait_for(logs: list[dict[str, object]], line: dict[str, object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not any(line.items() <= told.items() for told in list(logs)):
        assert time.monotonic() < deadline, f"no {line}"
        time.sleep(0.01)
