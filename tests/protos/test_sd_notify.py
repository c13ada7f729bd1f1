"""What a supervisor hears, over a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from specsched_protocol.sd_notify import Notifier, feed_watchdog


@pytest.fixture(params=["path", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    name = str(tmp_path / "notify")
    if request.param == "abstract":
        name = f"\0specsched-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(name)
        opened.settimeout(20)
        yield opened


def environment(supervisor: socket.socket, **more: str) -> dict[str, str]:
    name = supervisor.getsockname()
    shown = name if isinstance(name, str) else "@" + name[1:].decode()
    return {"NOTIFY_SOCKET": shown, **more}


def test_messages_are_what_systemd_reads(supervisor: socket.socket) -> None:
    notifier = Notifier.of(environment(supervisor))
    assert notifier.ready("serves\nmodel m")
    assert supervisor.recv(4096) == b"READY=1\nSTATUS=serves model m"
    assert notifier.status("compiles")
    assert supervisor.recv(4096) == b"STATUS=compiles"
    assert notifier.alive()
    assert supervisor.recv(4096) == b"WATCHDOG=1"
    assert notifier.stopping("drains")
    assert supervisor.recv(4096) == b"STOPPING=1\nSTATUS=drains"


def test_without_a_supervisor_nothing_is_told() -> None:
    for environ in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}):
        notifier = Notifier.of({**environ, "WATCHDOG_USEC": "1000000"})
        assert not notifier.ready("serves")
        assert notifier.watchdog_s is None
    assert Notifier.of({"NOTIFY_SOCKET": "/" + "x" * 200}) == Notifier()


def test_a_supervisor_that_is_gone_or_does_not_read_is_no_error(tmp_path: Path) -> None:
    assert not Notifier.of({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("serves")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        notifier = Notifier.of({"NOTIFY_SOCKET": str(tmp_path / "deaf")})
        told = 0
        while notifier.alive():  # until its queue is full
            told += 1
        assert told > 0


@pytest.mark.parametrize(
    ("usec", "watched", "seconds"),
    [
        ("30000000", "{pid}", 30.0),
        ("30000000", "", 30.0),
        ("30000000", "1", None),
        ("0", "{pid}", None),
        ("soon", "{pid}", None),
        ("", "{pid}", None),
    ],
)
def test_watchdog_time(
    supervisor: socket.socket, usec: str, watched: str, seconds: float | None
) -> None:
    pid = watched.format(pid=os.getpid())
    environ = environment(supervisor, WATCHDOG_USEC=usec, WATCHDOG_PID=pid)
    assert Notifier.of(environ).watchdog_s == seconds


async def test_the_watchdog_is_fed_while_all_is_well_and_told_why_when_not(
    supervisor: socket.socket,
) -> None:
    trouble: list[str] = []
    notifier = Notifier.of(environment(supervisor, WATCHDOG_USEC="20000"))
    feeding = asyncio.create_task(feed_watchdog(notifier, lambda: trouble[0] if trouble else None))
    try:
        for _ in range(3):
            assert await asyncio.to_thread(supervisor.recv, 4096) == b"WATCHDOG=1"
        trouble.append("the engine hangs")
        heard = b""
        while heard != b"STATUS=the engine hangs":
            heard = await asyncio.to_thread(supervisor.recv, 4096)
        for _ in range(3):  # and never again that it is alive
            assert await asyncio.to_thread(supervisor.recv, 4096) == heard
    finally:
        feeding.cancel()


async def test_nobody_who_watches_is_nobody_told(supervisor: socket.socket) -> None:
    feeding = asyncio.create_task(feed_watchdog(Notifier.of(environment(supervisor)), lambda: None))
    await asyncio.sleep(0)
    supervisor.setblocking(False)
    with pytest.raises(BlockingIOError):
        supervisor.recv(4096)
    assert not feeding.done()
    feeding.cancel()
