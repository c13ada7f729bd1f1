"""Options of a process that other machines may reach, besides what it serves on this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from specsched_protocol.tcp import TcpAddress, TlsFiles, tls_files

__all__ = ["ListenAddress", "ListenOptions"]

_TLS_OPTIONS = ("tls_client_ca", "tls_cert", "tls_key")


def _parse(listen: str | None) -> TcpAddress | None:
    return None if listen is None else TcpAddress.parse(listen, min_port=0)


def _check(listen: str | None) -> str | None:
    address = _parse(listen)
    return None if address is None else str(address)


ListenAddress = Annotated[str | None, AfterValidator(_check)]
"""host:port, port 0: any free one; None: nowhere."""


class ListenOptions:
    """Mixed into the settings of a process that has these options."""

    listen: ListenAddress
    tls_cert: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None

    @property
    def listen_address(self) -> TcpAddress | None:
        """What `listen` says."""
        return _parse(self.listen)

    @property
    def tls(self) -> TlsFiles | None:
        """The files of `listen`; None: plain text."""
        return tls_files(
            ca=self.tls_client_ca,
            certificate=self.tls_cert,
            key=self.tls_key,
            options=_TLS_OPTIONS,
        )

    def check_listening(self, otherwise: str, *, allow_plaintext: bool | None = None) -> None:
        """Raise ValueError unless plain text stays on this machine, and for what has no effect.

        otherwise: what to do instead of giving certificates. allow_plaintext: whether plain text
        may leave it; None: there is no such option.
        """
        address, has_tls = self.listen_address, self.tls is not None
        if address is None:
            if has_tls or allow_plaintext:
                options = ["tls_cert", "tls_key", "tls_client_ca"]
                options += [] if allow_plaintext is None else ["allow_plaintext"]
                names = f"{', '.join(options[:-1])} and {options[-1]}"
                raise ValueError(f"{names} have no effect without listen")
            return
        is_guarded = address.is_loopback or has_tls
        if allow_plaintext and is_guarded:
            raise ValueError(
                "allow_plaintext has no effect with certificates or on a loopback address: drop it"
            )
        if not is_guarded and not allow_plaintext:
            raise ValueError(
                f"listen = {self.listen!r} is reachable from other machines, so both ends must"
                f" prove who they are: give tls_cert, tls_key and tls_client_ca; or {otherwise}"
            )
