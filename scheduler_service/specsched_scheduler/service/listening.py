"""Where a scheduler listens: its socket in the run directory, and TCP."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
from specsched_protocol.tcp import TcpAddress, TlsFiles

from .errors import ListenError

__all__ = ["KEEPALIVE_OPTIONS", "listen_on_socket", "listen_on_tcp"]

_PING_MS = 5_000
KEEPALIVE_OPTIONS = (
    # An executor's host that dies without a word is noticed by pings that stay unanswered; one that
    # pings as often is no offender.
    ("grpc.keepalive_time_ms", 2 * _PING_MS),
    ("grpc.keepalive_timeout_ms", _PING_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # Two schedulers on one port would share its executors in silence.
    ("grpc.so_reuseport", 0),
)
"""Options of the server; they matter on TCP only."""


def listen_on_socket(server: grpc.aio.Server, path: Path) -> None:
    """Bind `path`, which is claimed, with mode 0600."""
    # The socket is born 0600: there is no moment in which others of the machine could connect.
    previous_umask = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
    finally:
        os.umask(previous_umask)


def listen_on_tcp(server: grpc.aio.Server, address: TcpAddress, tls: TlsFiles | None) -> int:
    """Bind `address`, by mutual TLS if there are files for it; returns the port.

    Raises ListenError where the address cannot be bound or a file not be read.
    """
    try:
        if tls is None:
            return server.add_insecure_port(str(address))
        ca, certificate, key = tls.read()
        credentials = grpc.ssl_server_credentials(
            [(key, certificate)], root_certificates=ca, require_client_auth=True
        )
        return server.add_secure_port(str(address), credentials)
    except (RuntimeError, OSError) as error:
        raise ListenError(f"cannot listen on {address} (--listen): {error}") from error
