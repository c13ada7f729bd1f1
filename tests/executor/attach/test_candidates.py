"""When an endpoint is dialled again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from specsched_executor.attach import candidates
from specsched_executor.attach.candidates import Candidates
from specsched_executor.attach.endpoints import SchedulerEndpoint
from specsched_executor.attach.seams import AttachConfig
from specsched_protocol.tcp import TcpAddress

ENDPOINT = SchedulerEndpoint.of_address(TcpAddress("127.0.0.1", 1), tls=None)


class Dialled:
    """One endpoint under a clock of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(candidates, "time", SimpleNamespace(monotonic=lambda: self.now))
        self._candidates = Candidates(AttachConfig(min_backoff_ms=100, max_backoff_ms=1000))

    @property
    def is_due(self) -> bool:
        return bool(list(self._candidates.due([ENDPOINT])))

    def attach_for(self, seconds: float) -> None:
        (candidate,) = self._candidates.due([ENDPOINT])
        self._candidates.succeeded(SimpleNamespace(endpoint=ENDPOINT))
        self.now += seconds
        self._candidates.lost(candidate)

    def wait_ms(self) -> float:
        """How long it is not due, in steps of 50 ms."""
        waited = 0
        while not self.is_due:
            self.now += 0.05
            waited += 50
        return waited


def test_one_that_never_lasts_is_dialled_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled = Dialled(monkeypatch)
    waits = []
    for _ in range(6):
        dialled.attach_for(0.1)
        waits.append(dialled.wait_ms())
    assert 50 < waits[0] <= 150
    assert waits[-1] > 700


def test_one_that_lasted_is_dialled_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled = Dialled(monkeypatch)
    for _ in range(6):
        dialled.attach_for(0.1)
        dialled.wait_ms()
    dialled.attach_for(2.0)
    assert dialled.wait_ms() <= 150
