"""The policy is set, watched and put back, and nobody else's is overwritten."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from specsched_client import InvalidRequestError
from specsched_client._sampling import Sampling
from specsched_client.bench.load import ClosedLoop
from specsched_client.bench.sender import Workload
from specsched_client.bench.session import Session, Variant
from specsched_client.bench.termination import sigterm_as_ctrl_c
from specsched_protocol.v1 import plan_pb2

from tests.clients.bench.known_server import TARGET, KnownServer

VARIANTS = tuple(Variant(name, TARGET, name) for name in ("off", "fixed"))
WORK = Workload([[1, 2]], 2, Sampling(max_tokens=4))
SPEEDS = {"off": 1.0, "fixed": 2.0, "throughput": 3.0, "ratio": 4.0}


async def measure(session: Session) -> None:
    try:
        await session.run_repeat(VARIANTS, ClosedLoop(1), WORK, 0, "round")
    finally:
        await session.put_back_policy()


def test_the_policy_found_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server = KnownServer(monkeypatch, SPEEDS)
    asyncio.run(measure(server.session()))
    assert server.policy.name == "throughput"


def test_a_policy_of_somebody_else_ends_the_run_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    server = KnownServer(monkeypatch, SPEEDS)

    def interfere() -> None:
        server.policy = plan_pb2.PolicySpec(name="ratio")

    server.before_request = interfere
    with pytest.raises(
        InvalidRequestError, match="set to ratio by somebody else while off was measured"
    ):
        asyncio.run(measure(server.session()))
    assert server.policy.name == "ratio"


def test_a_session_that_set_nothing_puts_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server = KnownServer(monkeypatch, SPEEDS)
    session = server.session()
    server.policy = plan_pb2.PolicySpec(name="ratio")
    asyncio.run(session.put_back_policy())
    assert server.policy.name == "ratio"


@pytest.mark.parametrize(
    ("number", "on_ctrl_c"),
    [
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_IGN),
    ],
    ids=["SIGINT", "SIGTERM", "SIGTERM in the background"],
)
def test_a_signal_puts_the_policy_back(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, on_ctrl_c: Any
) -> None:
    server = KnownServer(monkeypatch, SPEEDS)
    signals = iter([number])  # a second one would not wait for the tidying up

    def tell_to_end() -> None:
        for one in signals:
            os.kill(os.getpid(), one)

    server.before_request = tell_to_end
    # Workers of pytest-xdist ignore it, and so does what a shell runs in the background.
    usual = signal.signal(signal.SIGINT, on_ctrl_c)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt), sigterm_as_ctrl_c():
            asyncio.run(measure(server.session()))
    finally:
        signal.signal(signal.SIGINT, usual)
    assert server.policy.name == "throughput"
    assert signal.getsignal(signal.SIGTERM) is before
