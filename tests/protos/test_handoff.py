"""The hand-over: once, to the right user, and no malformed peer disturbs another."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from specsched_protocol import handoff
from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.handoff import (
    NONCE_BYTES,
    HandoffError,
    HandoffServer,
    SharedDescriptors,
    fetch_descriptors,
)
from specsched_protocol.shm import ABI_VERSION


def make_descriptors() -> SharedDescriptors:
    return SharedDescriptors(
        executor_region=OwnedDescriptor(os.memfd_create("executor")),
        lane_region=OwnedDescriptor(os.memfd_create("lane")),
        doorbell=OwnedDescriptor(os.eventfd(0, os.EFD_NONBLOCK)),
    )


def inode(descriptor: OwnedDescriptor) -> int:
    return os.fstat(descriptor.fileno()).st_ino


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "handoff.sock"


@pytest.fixture
def server(path: Path) -> Iterator[HandoffServer]:
    server = HandoffServer(path, timeout_s=0.3)
    yield server
    server.close()


def assert_still_serves(server: HandoffServer) -> None:
    descriptors = make_descriptors()
    received = fetch_descriptors(server.path, server.offer(descriptors))
    assert inode(received.executor_region) == inode(descriptors.executor_region)


def test_the_offered_files_arrive_in_order(server: HandoffServer):
    offered, other = make_descriptors(), make_descriptors()
    nonce, _ = server.offer(offered), server.offer(other)
    received = fetch_descriptors(server.path, nonce)
    assert inode(received.executor_region) == inode(offered.executor_region)
    assert inode(received.lane_region) == inode(offered.lane_region)
    os.eventfd_write(offered.doorbell.fileno(), 3)
    assert os.eventfd_read(received.doorbell.fileno()) == 3
    for descriptor in (received.executor_region, received.lane_region, received.doorbell):
        assert not os.get_inheritable(descriptor.fileno())


def test_the_socket_is_private(server: HandoffServer):
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600


def test_a_nonce_is_good_once(server: HandoffServer):
    nonce = server.offer(make_descriptors())
    fetch_descriptors(server.path, nonce)
    with pytest.raises(HandoffError, match="refused: unknown nonce"):
        fetch_descriptors(server.path, nonce)
    assert_still_serves(server)


def test_a_wrong_nonce_leaves_the_offer_standing(server: HandoffServer):
    nonce = server.offer(make_descriptors())
    wrong = bytes([nonce[0] ^ 1]) + nonce[1:]
    with pytest.raises(HandoffError, match="unknown nonce"):
        fetch_descriptors(server.path, wrong)
    fetch_descriptors(server.path, nonce)


def test_a_withdrawn_offer_is_void(server: HandoffServer):
    nonce = server.offer(make_descriptors())
    server.withdraw(nonce)
    server.withdraw(nonce)
    with pytest.raises(HandoffError, match="unknown nonce"):
        fetch_descriptors(server.path, nonce)


def test_another_user_gets_nothing(path: Path):
    uid = os.geteuid()
    foreign = HandoffServer(path, get_peer_uid=lambda _: uid + 1)
    try:
        nonce = foreign.offer(make_descriptors())
        with pytest.raises(HandoffError, match=f"peer runs as uid {uid + 1}, accepted is {uid}"):
            fetch_descriptors(path, nonce)
        assert nonce in foreign._offers
    finally:
        foreign.close()


def test_the_kernel_tells_who_connects(path: Path):
    seen: list[int] = []

    def look(connection: socket.socket) -> int:
        seen.append(handoff.peer_uid(connection))
        return seen[-1]

    server = HandoffServer(path, get_peer_uid=look)
    try:
        fetch_descriptors(path, server.offer(make_descriptors()))
    finally:
        server.close()
    assert seen == [os.geteuid()]


# ===================== Malformed peers =====================

GOOD = struct.Struct("<8sI32s")


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"x", "request has 1 bytes"),
        (GOOD.pack(b"SPECHAND", 1, bytes(32))[:-1], "request has 43 bytes"),
        (GOOD.pack(b"SPECHAND", 1, bytes(32)) + b"x", "request has more bytes, expected 44"),
        (bytes(60_000), "request has more bytes"),
        (GOOD.pack(b"GET / HT", 1, bytes(32)), "request begins with b'GET / HT'"),
        (GOOD.pack(b"SPECHAND", 99, bytes(32)), f"ABI version 99, expected {ABI_VERSION}"),
    ],
)
def test_a_malformed_request_is_told_why(server: HandoffServer, packet: bytes, reason: str):
    server.offer(make_descriptors())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(60)
        peer.connect(os.fspath(server.path))
        peer.send(packet)
        data, fds, _, _ = socket.recv_fds(peer, 256, 3)
    assert fds == []
    assert reason.encode() in data
    assert_still_serves(server)


def test_silent_peers_neither_block_others_nor_stay(server: HandoffServer):
    peers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(4)]
    for peer in peers:
        peer.settimeout(60)
        peer.connect(os.fspath(server.path))
    assert_still_serves(server)
    for peer in peers:
        assert peer.recv(16) == b""
        peer.close()


def test_a_peer_that_leaves_at_once_is_forgotten(server: HandoffServer):
    for _ in range(32):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect(os.fspath(server.path))
    assert_still_serves(server)


def test_descriptors_sent_along_with_a_request_are_not_kept(server: HandoffServer):
    before = len(os.listdir("/proc/self/fd"))
    read_end, write_end = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(60)
        peer.connect(os.fspath(server.path))
        socket.send_fds(peer, [b"x"], [write_end])
        assert b"request has 1 bytes" in peer.recv(256)
        assert peer.recv(256) == b""  # the server has closed the connection
    os.close(write_end)
    # The write end is closed everywhere once reading gives end of file.
    os.set_blocking(read_end, False)
    assert os.read(read_end, 1) == b""
    os.close(read_end)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_pending_offers_are_bounded(server: HandoffServer):
    for _ in range(16):
        server.offer(make_descriptors())
    with pytest.raises(HandoffError, match="16 hand-overs are pending, at most 16"):
        server.offer(make_descriptors())


# ===================== The scheduler's side =====================


def answer_once(path: Path, answer: Callable[[socket.socket], object]) -> socket.socket:
    """An executor that answers the next connection with what `answer` sends."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(os.fspath(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(256)
            answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    return listener


GRANT = struct.pack("<8sI116s", b"SPECHAND", 0, b"")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda peer: None, "malformed"),
        (lambda peer: peer.send(GRANT + b"x"), "malformed"),
        (lambda peer: peer.send(b"X" + GRANT[1:]), "begins with b'XPECHAND'"),
        (lambda peer: peer.send(GRANT), "received 0 descriptors, expected 3"),
        (lambda peer: socket.send_fds(peer, [GRANT], [0, 0]), "received 2 descriptors"),
        (lambda peer: socket.send_fds(peer, [GRANT], [0] * 9), "malformed"),
    ],
)
def test_an_executor_that_answers_nonsense_is_refused(path: Path, answer, message: str):
    num_open = len(os.listdir("/proc/self/fd"))
    with answer_once(path, answer), pytest.raises(HandoffError, match=message):
        fetch_descriptors(path, bytes(NONCE_BYTES))
    assert len(os.listdir("/proc/self/fd")) <= num_open + 1  # the serving thread may still close


def test_an_executor_that_does_not_answer_costs_a_bounded_time(path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        with pytest.raises(HandoffError, match="timed out"):
            fetch_descriptors(path, bytes(NONCE_BYTES), timeout_s=0.1)


def test_nobody_there_and_bad_arguments(path: Path):
    with pytest.raises(HandoffError, match=r"no hand-over at .*: .*No such file"):
        fetch_descriptors(path, bytes(NONCE_BYTES))
    with pytest.raises(HandoffError, match="nonce has 3 bytes, expected 32"):
        fetch_descriptors(path, b"abc")
    with pytest.raises(HandoffError, match=r"no hand-over at .*at most 107 are possible"):
        fetch_descriptors(Path("/a" * 100), bytes(NONCE_BYTES))


def test_an_executor_of_another_user_is_refused(server: HandoffServer, monkeypatch):
    nonce = server.offer(make_descriptors())
    monkeypatch.setattr(handoff, "peer_uid", lambda _: os.geteuid() + 1)
    with pytest.raises(HandoffError, match="runs as another user"):
        fetch_descriptors(server.path, nonce)


def test_peers_are_served_once_there_are_descriptors_again(path: Path, monkeypatch):
    class Listener:
        """Of a process that is out of descriptors at first."""

        num_failures = 3

        def __init__(self, listener: socket.socket) -> None:
            self._listener = listener

        def accept(self):
            if self.num_failures:
                self.num_failures -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return self._listener.accept()

        def __getattr__(self, name: str):
            return getattr(self._listener, name)

    listen = handoff._listen
    monkeypatch.setattr(handoff, "_listen", lambda path: Listener(listen(path)))
    server = HandoffServer(path)
    try:
        assert_still_serves(server)
    finally:
        server.close()


def test_peers_are_served_once_there_are_threads_again(server: HandoffServer, monkeypatch):
    start, num_failures = threading.Thread.start, 9  # more than are served at a time
    failures = [RuntimeError("can't start new thread")] * num_failures

    def sometimes(thread: threading.Thread) -> None:
        if failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", sometimes)
    for _ in range(num_failures):
        with pytest.raises(HandoffError):
            fetch_descriptors(server.path, server.offer(make_descriptors()))
    assert_still_serves(server)


def test_close_removes_the_socket_and_may_be_bound_again(path: Path):
    for _ in range(2):
        server = HandoffServer(path)
        server.close()
        assert not path.exists()
