"""Where a process serves HTTP, as its options say it. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from specsched_protocol.tcp import TcpAddress

__all__ = ["AUTO", "OFF", "HttpAddress", "ProbeAddress", "http_candidates", "probe_target"]

AUTO, OFF = "auto", "off"

_HOST = "127.0.0.1"


def _check_http(text: str) -> str:
    if text in {AUTO, OFF}:
        return text
    address = TcpAddress.parse(text, min_port=0)
    if not address.is_loopback:
        raise ValueError(
            f"{text!r} can be reached from other machines, and this port has no authentication;"
            " accepted: auto, off or a loopback address such as 127.0.0.1:9470. Health and metrics"
            " alone may be served elsewhere: probe_address"
        )
    return str(address)


def _check_probe(text: str | None) -> str | None:
    return None if text is None else str(TcpAddress.parse(text, min_port=0))


HttpAddress = Annotated[str, AfterValidator(_check_http)]
"""auto, off or host:port on loopback; port 0: any free one."""
ProbeAddress = Annotated[str | None, AfterValidator(_check_probe)]
"""host:port, on loopback or not; None: nowhere."""


def http_candidates(option: str, preferred_port: int) -> tuple[TcpAddress, ...]:
    """Addresses to try in turn: for auto the preferred port, else any free one. Empty: off."""
    if option == OFF:
        return ()
    if option == AUTO:
        return TcpAddress(_HOST, preferred_port), TcpAddress(_HOST, 0)
    return (TcpAddress.parse(option, min_port=0),)


def probe_target(option: str | None) -> TcpAddress | None:
    """The address of a probe option."""
    return None if option is None else TcpAddress.parse(option, min_port=0)
