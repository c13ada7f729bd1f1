"""Two network namespaces and a link between them that delays and loses packets.

What `ip netns` and `tc netem` do, without either: not every kernel has netem, not every machine
iproute2. Each namespace has a TUN device; a process of its own passes the IP packets from one to
the other, late or never. TCP is the kernel's on both sides, so loss means real retransmission.

    with SlowLink() as link:
        subprocess.run([*link.near.prefix, "ping", link.far.address])
        link.set(delay_ms=50, loss=0.01)

Needs the rights of root.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.integration.in_namespace import CLONE_NEWNET
from tests.repository import ROOT

NEAR, FAR = "10.77.0.1", "10.77.0.2"

_TUN = Path("/dev/net/tun")
_TUN_DEVICE = os.makedev(10, 200)
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SIOCSIFADDR, _SIOCSIFDSTADDR, _SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8916, 0x8918, 0x8913, 0x8914
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_MAX_PACKET_BYTES = 65_536


class LinkUnavailableError(RuntimeError):
    """This machine, or this user, cannot have such a link; the text says why."""


@dataclass(frozen=True)
class Namespace:
    """One end. prefix: put before a command, it runs there."""

    address: str
    prefix: tuple[str, ...]


class SlowLink:
    """A link that is there as long as the context; both namespaces end with their last process."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.slow_link"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate()
            raise LinkUnavailableError(errors.strip().rpartition("\n")[2] or "it said nothing")
        near, far = json.loads(line)
        self.near, self.far = self._namespace(NEAR, near), self._namespace(FAR, far)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.communicate()  # the end of its input is its end

    def set(self, *, delay_ms: float = 0.0, loss: float = 0.0) -> None:
        """Delay each packet by `delay_ms` one way, lose the share `loss` of them, from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{delay_ms} {loss}\n")
        self._process.stdin.flush()

    def _namespace(self, address: str, fd: int) -> Namespace:
        script = Path(__file__).with_name("in_namespace.py")
        path = f"/proc/{self._process.pid}/fd/{fd}"
        return Namespace(address, (sys.executable, str(script), path))


# ===================== The process =====================


@dataclass(frozen=True)
class _End:
    namespace_fd: int
    tun_fd: int


def _new_end(address: str, peer: str) -> _End:
    """Move to a new namespace whose only way out is the TUN device."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "no new network namespace")
    tun_fd = _open_tun()
    flags = _IFF_TUN | _IFF_NO_PI
    fcntl.ioctl(tun_fd, _TUNSETIFF, struct.pack("16sH22x", b"link", flags))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFDSTADDR, peer)):
            where = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(control, request, struct.pack("16s16s8x", b"link", where))
        for name in (b"link", b"lo"):
            answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", name, 0))
            up = struct.unpack("16xH22x", answer)[0] | _IFF_UP | _IFF_RUNNING
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name, up))
    return _End(os.open("/proc/self/ns/net", os.O_RDONLY), tun_fd)


def _open_tun() -> int:
    if _TUN.exists():
        return os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    with tempfile.TemporaryDirectory() as directory:  # a container without the device's file
        path = Path(directory) / "tun"
        os.mknod(path, 0o600 | stat.S_IFCHR, _TUN_DEVICE)
        return os.open(path, os.O_RDWR | os.O_NONBLOCK)


class _Forwarder:
    """Passes packets between two descriptors."""

    def __init__(self, near: _End, far: _End) -> None:
        self._peers = {near.tun_fd: far.tun_fd, far.tun_fd: near.tun_fd}
        self._delay_s = 0.0
        self._loss = 0.0
        self._random = random.Random(0)
        self._order = itertools.count()
        self._in_flight: list[tuple[float, int, int, bytes]] = []

    def run(self) -> None:
        """Until the end of standard input."""
        readable = [*self._peers, sys.stdin.fileno()]
        while True:
            ready, _, _ = select.select(readable, [], [], self._time_to_next())
            if sys.stdin.fileno() in ready:
                lines = os.read(sys.stdin.fileno(), 4096).decode().splitlines()
                if not lines:
                    return
                delay_ms, self._loss = map(float, lines[-1].split())
                self._delay_s = delay_ms / 1e3
            for fd in set(ready) & set(self._peers):
                self._take(fd)
            self._deliver()

    def _time_to_next(self) -> float | None:
        return max(0.0, self._in_flight[0][0] - time.monotonic()) if self._in_flight else None

    def _take(self, fd: int) -> None:
        packet = os.read(fd, _MAX_PACKET_BYTES)
        if self._random.random() >= self._loss:
            due = time.monotonic() + self._delay_s
            heapq.heappush(self._in_flight, (due, next(self._order), self._peers[fd], packet))

    def _deliver(self) -> None:
        while self._in_flight and self._in_flight[0][0] <= time.monotonic():
            _, _, fd, packet = heapq.heappop(self._in_flight)
            with contextlib.suppress(BlockingIOError):  # a full queue: lost, as on any link
                os.write(fd, packet)


def main() -> int:
    try:
        near, far = _new_end(NEAR, FAR), _new_end(FAR, NEAR)
    except OSError as error:
        print(f"no link between namespaces: {error}", file=sys.stderr)
        return 1
    print(json.dumps([near.namespace_fd, far.namespace_fd]), flush=True)
    _Forwarder(near, far).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
