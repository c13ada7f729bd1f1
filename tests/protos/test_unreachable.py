"""What gRPC itself says where it reaches nobody is told in plain words, and nothing else is."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from specsched_protocol.unreachable import Unreachable, status_reason

TIMEOUT_S = 60.0
LOOK_UP = "hostname lookup error:address lookup failed for nohost:1"
HANDSHAKE = "Tls handshake failed (TSI_PROTOCOL_FAILURE): CERTIFICATE_VERIFY_FAILED: no issuer: OK"


def details_of_call(target: str) -> str:
    no_proxy = [("grpc.enable_http_proxy", 0)]
    with (
        grpc.insecure_channel(target, options=no_proxy) as channel,
        pytest.raises(grpc.RpcError) as ended,
    ):
        health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S
        )
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE, ended.value
    return ended.value.details()


@contextlib.contextmanager
def answering(words: bytes) -> Iterator[str]:
    """Something that listens and says `words` to whoever comes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(words)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    ("target", "reason", "is_unresolved"),
    [
        ("127.0.0.1:1", "connection refused", False),
        ("unix:/nowhere/it.sock", "no such file or directory", False),
        ("unix:", "empty address list", True),
    ],
)
def test_a_real_call_that_reaches_nobody(target: str, reason: str, is_unresolved: bool) -> None:
    assert Unreachable.of_details(details_of_call(target)) == Unreachable(reason, is_unresolved)


def test_a_host_that_is_not_known() -> None:
    """The words are the resolver's: those of a machine without a name server are others."""
    why = Unreachable.of_details(details_of_call("host-that-is-not.invalid:1"))
    assert why is not None
    assert why.is_unresolved
    assert why.reason == why.reason.lower().strip("[]: ")


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_somebody_else_listens(words: bytes) -> None:
    with answering(words * 8) as target:
        why = Unreachable.of_details(details_of_call(target))
    assert why == Unreachable("what listens there speaks no gRPC")


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        (
            f"errors resolving nohost:1: [field:{LOOK_UP}: Domain name not found]",
            "domain name not found",
        ),
        (f"failed to connect to all addresses; last error: UNKNOWN: {HANDSHAKE}", HANDSHAKE),
        ("Socket closed", "the connection was cut off"),
        ("Cancelling all calls", "the connection was cut off"),
        ("recvmsg:Connection reset by peer", "the connection was cut off"),
        ("it is shutting down", "UNAVAILABLE: it is shutting down"),
        ("", "UNAVAILABLE: "),
    ],
)
def test_words_of_a_peer_stay_as_they_are(details: str, reason: str) -> None:
    assert status_reason(grpc.StatusCode.UNAVAILABLE, details) == reason


def test_another_status_is_told_with_its_name() -> None:
    assert status_reason(grpc.StatusCode.INTERNAL, "Socket closed") == "INTERNAL: Socket closed"
