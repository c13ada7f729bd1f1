"""Options of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from specsched_protocol.tcp import TcpAddress, TlsFiles


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Where the gateway listens and what bounds it. Raises ValueError naming a bad option.

    host: a loopback address or "localhost". port: 0 takes a free one. listen: another address to
    serve on, by mutual TLS if there are files for it; who chose it has checked that it may be plain
    text otherwise. shares_port: whether other gateways listen there too, each taking some of the
    connections; for `ReservedPorts` to set. max_open_requests: requests
    running or queued at once; more are refused with RESOURCE_EXHAUSTED. max_message_bytes: of one
    message, either way. max_chunks_per_second: stream messages of all requests together, so that
    with n streams each gets one every n / max_chunks_per_second seconds with all tokens since.
    Messages take interpreter time that the engine's thread needs too; the bench of the gateway's
    streams measures how much.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    listen: TcpAddress | None = None
    tls: TlsFiles | None = None
    shares_port: bool = False
    max_open_requests: int = 1024
    max_message_bytes: int = 4 * 1024 * 1024
    max_chunks_per_second: int = 4_000

    def __post_init__(self) -> None:
        if not TcpAddress(self.host, self.port).is_loopback:
            raise ValueError(
                f"host = {self.host!r}: the gateway speaks plain text, so it listens on a loopback "
                "address only (127.0.0.1, ::1 or localhost)"
            )
        _check_range("port", self.port, 0, 65535)
        _check_range("max_open_requests", self.max_open_requests, 1, 1_000_000)
        _check_range("max_message_bytes", self.max_message_bytes, 4096, 2**31 - 1)
        _check_range("max_chunks_per_second", self.max_chunks_per_second, 1, 10_000_000)

    @property
    def address(self) -> str:
        """host:port as gRPC wants it."""
        return str(TcpAddress(self.host, self.port))


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} = {value!r}; accepted: {low} to {high}")
