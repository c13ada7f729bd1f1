"""The ports of the gateway API before anything listens on them."""

from __future__ import annotations

import dataclasses
import errno
import socket
from collections.abc import Callable
from contextlib import ExitStack

from specsched_protocol.tcp import TcpAddress

from specsched_executor.gateway.config import GatewayConfig
from specsched_executor.gateway.errors import GatewayError

__all__ = ["ReservedPorts", "cannot_listen", "cannot_listen_there", "check_port"]


def check_port(config: GatewayConfig) -> None:
    """Raise GatewayError where an address is taken or may not be had, long before it is bound."""
    with ExitStack() as probes:
        _bind_all(config, probes)


class ReservedPorts:
    """Lets several gateways of this user listen on the ports, and no other executor.

    config: what the gateways are to be made of; ports that were 0 have a number there. Call `close`
    once all of them listen: what connects before is reset. Raises GatewayError as `check_port`.
    """

    def __init__(self, config: GatewayConfig) -> None:
        with ExitStack() as sockets:
            port, listen_port = _bind_all(config, sockets, _reserve)
            self._sockets = sockets.pop_all()
        listen = config.listen and TcpAddress(config.listen.host, listen_port)
        self.config = dataclasses.replace(config, port=port, listen=listen, shares_port=True)

    def close(self) -> None:
        """Leave the ports to those that listen by now; idempotent."""
        self._sockets.close()


def cannot_listen_there(address: TcpAddress, error: Exception) -> GatewayError:
    """For `listen` of the options."""
    return GatewayError(f"cannot listen on {address} (--listen): {error}")


def cannot_listen(config: GatewayConfig, reason: str) -> GatewayError:
    """For `host` and `port` of the options."""
    return GatewayError(
        f"cannot listen on {config.address}: {reason}; accepted: a free port (--port), 0 for any"
    )


def _nothing_more(bound: socket.socket) -> None:
    """A bind alone tells whether a port is free."""


def _reserve(bound: socket.socket) -> None:
    # Nobody else gets a port that is listened on, but with SO_REUSEPORT on both sides. It is set
    # after the bind, which fails so where any other socket is there, whatever options that has.
    bound.listen()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def _bind_all(
    config: GatewayConfig,
    sockets: ExitStack,
    then: Callable[[socket.socket], None] = _nothing_more,
) -> tuple[int, int]:
    """The ports of host and of `listen`, 0 without one, on sockets that `sockets` closes."""
    try:
        port = _bind(config.host, config.port, sockets, then)
    except OSError as error:
        raise cannot_listen(config, str(error.strerror).lower()) from error
    if config.listen is None:
        return port, 0
    try:
        return port, _bind(config.listen.host, config.listen.port, sockets, then)
    except OSError as error:
        raise cannot_listen_there(config.listen, error) from error


def _bind(host: str, port: int, sockets: ExitStack, then: Callable[[socket.socket], None]) -> int:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, (ip, _, *scope) in addresses:
        bound = sockets.enter_context(socket.socket(family, kind, protocol))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
        try:
            bound.bind((ip, port, *scope))
            port = bound.getsockname()[1]
            then(bound)
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                raise
    return port
