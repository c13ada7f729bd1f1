"""Where schedulers are: a socket in the run directory, or an address."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
from specsched_protocol.run_dir import is_listening
from specsched_protocol.tcp import TcpAddress, TlsFiles

__all__ = ["SchedulerEndpoint"]

_PING_MS = 10_000
_PING_TIMEOUT_MS = 5_000
_TCP_OPTIONS = (
    # A host that dies without a word is noticed by pings that stay unanswered.
    ("grpc.keepalive_time_ms", _PING_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # Found by the address alone; an HTTP proxy of the environment has no part in it.
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class SchedulerEndpoint:
    """One place where a scheduler may serve.

    name: for logs and status. target: as gRPC dials it. tls: files of this end; None: plain text.
    is_local: on this machine, so that memory might be shared. socket_path: None for an address.
    """

    name: str
    target: str
    is_local: bool
    tls: TlsFiles | None = None
    socket_path: Path | None = None

    @classmethod
    def of_socket(cls, path: Path) -> Self:
        """A discovery socket; its name is that of its scheduler."""
        return cls(name=path.stem, target=f"unix:{path}", is_local=True, socket_path=path)

    @classmethod
    def of_address(cls, address: TcpAddress, tls: TlsFiles | None) -> Self:
        """A TCP address. Raises ValueError for plain text to another machine."""
        if tls is None and not address.is_loopback:
            raise ValueError(f"{address} is on another machine: it is dialled with mutual TLS only")
        return cls(str(address), str(address), address.is_loopback, tls)

    def identity(self) -> tuple[int, int] | None:
        """Tells a socket bound anew from the old one; None if it cannot be looked at. An address is
        its own."""
        if self.socket_path is None:
            return 0, 0
        try:
            status = self.socket_path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    def is_dead(self) -> bool:
        """Whether it is the socket of a process that is gone: told without a channel, which takes
        milliseconds of interpreter time that steps need. An address is dialled to find out."""
        return self.socket_path is not None and not is_listening(self.socket_path)

    def connect(self, options: list[tuple[str, int]]) -> grpc.Channel:
        """A channel to it. Certificates are read each time, so renewed ones are used.

        Raises OSError for a file that cannot be read any more.
        """
        if self.socket_path is None:
            options = [*options, *_TCP_OPTIONS]
        if self.tls is None:
            return grpc.insecure_channel(self.target, options=options)
        ca, certificate, key = self.tls.read()
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        return grpc.secure_channel(self.target, credentials, options=options)
