"""Handing the shared regions to a scheduler over the executor's private Unix socket.

gRPC cannot carry descriptors, so the Attach stream carries a nonce and this socket the descriptors:

    scheduler -> executor   magic, ABI version, nonce                       one packet
    executor -> scheduler   magic, status, reason; with status 0 SCM_RIGHTS:
                            executor region, lane region, doorbell eventfd  one packet

Both ends check by SO_PEERCRED that the other runs as the same user. A nonce is good once. Packets
(SOCK_SEQPACKET) have a fixed size and one time limit: a peer can neither grow a buffer nor stay.
"""

from __future__ import annotations

import array
import hmac
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.run_dir import RunDirError, check_socket_path, remove_stale_socket
from specsched_protocol.shm.layout import ABI_VERSION

__all__ = [
    "NONCE_BYTES",
    "HandoffError",
    "HandoffServer",
    "SharedDescriptors",
    "fetch_descriptors",
    "peer_uid",
]

NONCE_BYTES = 32

_MAGIC = b"SPECHAND"
_REQUEST = struct.Struct(f"<8sI{NONCE_BYTES}s")
_RESPONSE = struct.Struct("<8sI116s")
_UCRED = struct.Struct("iII")
_TIMEVAL = struct.Struct("ll")
_GRANTED = 0
_REFUSED = 1
_NUM_DESCRIPTORS = 3
_MAX_OFFERS = 16
_MAX_CONNECTIONS = 8
_BACKLOG = 64
_SERVER_TIMEOUT_S = 2.0
_RETRY_S = 0.1
_CLIENT_TIMEOUT_S = 10.0  # longer: a connection may wait for silent peers before it

_log = structlog.get_logger(__name__)


class HandoffError(RuntimeError):
    """The descriptors were refused or could not be fetched; the message says why."""


@dataclass(frozen=True, slots=True)
class SharedDescriptors:
    """What a scheduler gets: the executor's region, its own lane, the doorbell eventfd."""

    executor_region: OwnedDescriptor
    lane_region: OwnedDescriptor
    doorbell: OwnedDescriptor


def peer_uid(connection: socket.socket) -> int:
    """Effective uid of the process that connected, told by the kernel."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _pid, uid, _gid = _UCRED.unpack(raw)
    return int(uid)


# ===================== Executor =====================


class HandoffServer:
    """Serves the hand-over socket on a thread of its own; its methods may be called from any.

    `get_peer_uid` is replaceable so that a foreign peer can be tested without a second user.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout_s: float = _SERVER_TIMEOUT_S,
        get_peer_uid: Callable[[socket.socket], int] = peer_uid,
    ) -> None:
        self.path = check_socket_path(path)
        self._timeout_s = timeout_s
        self._get_peer_uid = get_peer_uid
        self._lock = threading.Lock()
        self._offers: dict[bytes, SharedDescriptors] = {}
        self._places = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._closing = threading.Event()
        self._listener = _listen(path)
        self._thread = threading.Thread(target=self._serve, name="handoff", daemon=True)
        self._thread.start()

    def offer(self, descriptors: SharedDescriptors) -> bytes:
        """Grant one hand-over of `descriptors`; returns the nonce that claims it."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        with self._lock:
            if len(self._offers) >= _MAX_OFFERS:
                raise HandoffError(
                    f"{len(self._offers)} hand-overs are pending, at most {_MAX_OFFERS}"
                )
            self._offers[nonce] = descriptors
        return nonce

    def withdraw(self, nonce: bytes) -> None:
        """Take an offer back; nothing happens if it was claimed already."""
        with self._lock:
            self._offers.pop(nonce, None)

    def close(self) -> None:
        """Stop listening and remove the socket. Offers not claimed are void."""
        with self._lock:
            self._offers.clear()
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread; close would not
        self._thread.join()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            self._places.acquire()  # further peers wait in the backlog
            connection = self._accept()
            if connection is None:
                return
            try:
                threading.Thread(target=self._handle, args=(connection,), daemon=True).start()
            except RuntimeError as error:  # out of threads: that passes, this one must not
                _log.warning("handoff_failed", error=str(error))
                connection.close()
                self._places.release()

    def _accept(self) -> socket.socket | None:
        """The next peer; None once closed."""
        last_reason = None
        while not self._closing.is_set():
            try:
                return self._listener.accept()[0]
            except OSError as error:  # out of descriptors, say: that passes, this thread must not
                if not self._closing.is_set() and str(error) != last_reason:
                    _log.warning("handoff_failed", error=str(error))
                last_reason = str(error)
                self._closing.wait(_RETRY_S)
        return None

    def _handle(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(self._timeout_s)
                self._answer(connection)
        except OSError as error:
            _log.warning("handoff_failed", error=str(error))
        finally:
            self._places.release()

    def _answer(self, connection: socket.socket) -> None:
        packet = connection.recv(_REQUEST.size + 1)
        if not packet:
            return  # who only asks whether somebody listens here
        try:
            descriptors = self._claim(connection, packet)
        except HandoffError as error:
            _log.warning("handoff_refused", reason=str(error))
            reason = str(error).encode()[:116]
            connection.send(_RESPONSE.pack(_MAGIC, _REFUSED, reason))
            return
        owned = (descriptors.executor_region, descriptors.lane_region, descriptors.doorbell)
        fds = [descriptor.fileno() for descriptor in owned]
        socket.send_fds(connection, [_RESPONSE.pack(_MAGIC, _GRANTED, b"")], fds)

    def _claim(self, connection: socket.socket, packet: bytes) -> SharedDescriptors:
        uid = self._get_peer_uid(connection)
        if uid != os.geteuid():
            raise HandoffError(f"peer runs as uid {uid}, accepted is {os.geteuid()}")
        if len(packet) != _REQUEST.size:
            size = "more" if len(packet) > _REQUEST.size else str(len(packet))
            raise HandoffError(f"request has {size} bytes, expected {_REQUEST.size}")
        magic, abi_version, nonce = _REQUEST.unpack(packet)
        if magic != _MAGIC:
            raise HandoffError(f"request begins with {magic!r}, expected {_MAGIC!r}")
        if abi_version != ABI_VERSION:
            raise HandoffError(f"peer has ABI version {abi_version}, expected {ABI_VERSION}")
        return self._redeem(nonce)

    def _redeem(self, nonce: bytes) -> SharedDescriptors:
        with self._lock:
            # Every offer is compared, in constant time: a guess learns nothing from the delay.
            matches = [offer for offer in self._offers if hmac.compare_digest(offer, nonce)]
            if not matches:
                raise HandoffError("unknown nonce: never offered, used before or withdrawn")
            return self._offers.pop(matches[0])


def _listen(path: Path) -> socket.socket:
    remove_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        os.fchmod(listener.fileno(), 0o600)  # before bind: others can connect at no moment
        listener.bind(os.fspath(path))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


# ===================== Scheduler =====================


def fetch_descriptors(
    path: Path, nonce: bytes, *, timeout_s: float = _CLIENT_TIMEOUT_S
) -> SharedDescriptors:
    """Claim the descriptors offered with `nonce` at the executor's socket `path`.

    Raises HandoffError if the executor runs as another user, refuses, answers with anything but one
    well-formed packet, or does not answer in time. Received descriptors are close-on-exec.
    """
    if len(nonce) != NONCE_BYTES:
        raise HandoffError(f"nonce has {len(nonce)} bytes, expected {NONCE_BYTES}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            # A blocking connect waits for a place in the backlog, a non-blocking one fails.
            seconds, fraction = divmod(timeout_s, 1.0)
            time_limit = _TIMEVAL.pack(int(seconds), int(fraction * 1e6))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time_limit)
            connection.connect(os.fspath(check_socket_path(path)))
            connection.settimeout(timeout_s)
            if peer_uid(connection) != os.geteuid():
                raise HandoffError(f"the executor at {path} runs as another user")
            connection.send(_REQUEST.pack(_MAGIC, ABI_VERSION, nonce))
            return _receive(connection)
        except (OSError, RunDirError) as error:  # the path is the executor's word
            raise HandoffError(f"no hand-over at {path}: {error}") from error


def _receive(connection: socket.socket) -> SharedDescriptors:
    fds = array.array("i")
    # Not socket.recv_fds: it drops the flags, and the descriptors would survive an exec.
    packet, ancillary, flags, _ = connection.recvmsg(
        _RESPONSE.size + 1,
        socket.CMSG_SPACE(_NUM_DESCRIPTORS * fds.itemsize),
        socket.MSG_CMSG_CLOEXEC,
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    owned = [OwnedDescriptor(fd) for fd in fds]
    if len(packet) != _RESPONSE.size or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise HandoffError("the executor's answer is malformed")
    magic, status, reason = _RESPONSE.unpack(packet)
    if magic != _MAGIC:
        raise HandoffError(f"the executor's answer begins with {magic!r}, expected {_MAGIC!r}")
    if status != _GRANTED:
        text = reason.rstrip(b"\0").decode(errors="replace")
        raise HandoffError(f"the executor refused: {text}")
    if len(owned) != _NUM_DESCRIPTORS:
        raise HandoffError(f"received {len(owned)} descriptors, expected {_NUM_DESCRIPTORS}")
    return SharedDescriptors(*owned)
