"""Options that say where other machines reach the gateway API. Importable without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from specsched_protocol.tcp import TcpAddress, TlsFiles, tls_files

from specsched_executor.device_config import DeviceConfig

__all__ = ["ListenConfig"]


class ListenConfig(DeviceConfig):
    """A second address of the gateway API, and who may use it."""

    env_prefix = "SPECSCHED_EXECUTOR_"

    listen: str | None = Field(
        None,
        description="TCP address to serve the gateway API on besides host and port, host:port; port"
        " 0: any free one. Beyond this machine it needs the three TLS options, or allow_plaintext",
    )
    tls_cert: Path | None = Field(
        None, description="PEM certificate that is shown there, with the chain to its CA"
    )
    tls_key: Path | None = Field(None, description="PEM key of that certificate")
    tls_client_ca: Path | None = Field(
        None, description="PEM certificates of who signs the gateways' and clients' certificates"
    )
    allow_plaintext: bool = Field(
        False,
        description="Serve beyond this machine without TLS: only where the network itself lets none"
        " but trusted peers reach the port",
    )

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, listen: str | None) -> str | None:
        return None if listen is None else str(TcpAddress.parse(listen, min_port=0))

    @model_validator(mode="after")
    def _check_listening(self) -> Self:
        files, address = self.tls, self.listen_address
        if address is None:
            if files is not None or self.allow_plaintext:
                raise ValueError(
                    "tls_cert, tls_key, tls_client_ca and allow_plaintext have no effect without"
                    " listen"
                )
            return self
        is_guarded = address.is_loopback or files is not None
        if self.allow_plaintext and is_guarded:
            raise ValueError(
                "allow_plaintext has no effect with certificates or on a loopback address: drop it"
            )
        if not is_guarded and not self.allow_plaintext:
            raise ValueError(
                f"listen = {self.listen!r} is reachable from other machines, so both ends must"
                " prove who they are: give tls_cert, tls_key and tls_client_ca; or allow_plaintext"
                " where the network lets none but trusted peers in"
            )
        return self

    @property
    def listen_address(self) -> TcpAddress | None:
        """Where to serve besides `host` and `port`."""
        return None if self.listen is None else TcpAddress.parse(self.listen, min_port=0)

    @property
    def tls(self) -> TlsFiles | None:
        """The files of `listen`; None: plain text."""
        return tls_files(
            ca=self.tls_client_ca,
            certificate=self.tls_cert,
            key=self.tls_key,
            options=("tls_client_ca", "tls_cert", "tls_key"),
        )
