"""What the address of a server looks like."""

from __future__ import annotations

from typing import Final

from specsched_protocol.tcp import TcpAddress

from specsched_client._errors import InvalidRequestError

_NAMED_SCHEMES: Final = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:")
"""Names that gRPC resolves itself."""


def check_target(target: str) -> str:
    """`target` itself. Raises InvalidRequestError unless it is host:port or has a scheme."""
    if not target.startswith(_NAMED_SCHEMES):
        try:
            TcpAddress.parse(target)
        except ValueError as error:
            raise InvalidRequestError(f"target {error}; or unix:/path/of/a.sock") from None
    return target
