"""The sockets of a process's HTTP port, bound before anything that takes long."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from specsched_protocol.http.address import http_candidates, probe_target
from specsched_protocol.tcp import TcpAddress

__all__ = ["BACKLOG", "HttpListenError", "Listeners"]

BACKLOG = 128


class HttpListenError(RuntimeError):
    """An address cannot be listened on; the message names it and what is accepted."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Bound and listening; what connects waits until a server takes them over.

    local: for everything, loopback only; probe: for health and metrics. None: not wanted.
    """

    local: socket.socket | None = None
    probe: socket.socket | None = None

    @classmethod
    @contextmanager
    def bind(
        cls, http_address: str, probe_address: str | None, preferred_port: int
    ) -> Iterator[Self]:
        """Bind what two options name, until the end of the block.

        preferred_port: of http_address = auto. Raises HttpListenError for what cannot be had.
        """
        with contextlib.ExitStack() as bound:
            local = _first_free(http_candidates(http_address, preferred_port), "--http-address")
            if local is not None:
                bound.callback(local.close)
            target = probe_target(probe_address)
            probe = _first_free(() if target is None else (target,), "--probe-address")
            if probe is not None:
                bound.callback(probe.close)
            yield cls(local, probe)


def _first_free(candidates: Iterable[TcpAddress], option: str) -> socket.socket | None:
    reason = None
    for address in candidates:
        try:
            return _bound(address)
        except OSError as error:
            reason = f"cannot listen on {address} ({option}): {error.strerror or error}".lower()
    if reason is not None:
        raise HttpListenError(f"{reason}; accepted: an address of this machine with a free port")
    return None


def _bound(address: TcpAddress) -> socket.socket:
    family, kind, protocol, _, target = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(BACKLOG)  # at once: two that are merely bound may share a port
    except OSError:
        sock.close()
        raise
    return sock
