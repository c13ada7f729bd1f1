"""Why gRPC reached nobody, in plain words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

import grpc

__all__ = ["Unreachable", "status_reason"]

_UNRESOLVED: Final = ("errors resolving ", "DNS resolution failed", "empty address list")
_UNCONNECTED: Final = ("failed to connect to all addresses", "connections to all backends")
_NO_GRPC: Final = ("Failed parsing HTTP/2", "http1.x server")
_CUT_OFF: Final = ("Socket closed", "recvmsg:", "sendmsg:", "Cancelling all calls")
_HANDSHAKE: Final = re.compile("(?:Tls|Ssl) handshake failed.*")


@dataclass(frozen=True, slots=True)
class Unreachable:
    """What kept a call from its peer. is_unresolved: its address could not even be looked up."""

    reason: str
    is_unresolved: bool = False

    @classmethod
    def of_details(cls, details: str) -> Self | None:
        """Read the details of a status UNAVAILABLE, as gRPC's core writes them.

        None where they are others: then a peer was reached, and they are its own words.
        """
        last = details.rpartition(": ")[2].rstrip("]").lower()
        if details.startswith(_UNRESOLVED):
            return cls(last, is_unresolved=True)
        if details.startswith(_CUT_OFF):
            return cls("the connection was cut off")
        if not details.startswith(_UNCONNECTED):
            return None
        if handshake := _HANDSHAKE.search(details):  # the reason is not what comes last
            return cls(handshake[0])
        if any(words in details for words in _NO_GRPC):
            return cls("what listens there speaks no gRPC")
        return cls(last)


def status_reason(code: grpc.StatusCode, details: str | None) -> str:
    """Why a call ended with a status other than OK, for a message or a line of a log."""
    if code is grpc.StatusCode.UNAVAILABLE and (why := Unreachable.of_details(details or "")):
        return why.reason
    return f"{code.name}: {details}"
