"""Options that say which schedulers an executor attaches to and by what transport."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from specsched_protocol.settings import ProcessSettings
from specsched_protocol.tcp import TcpAddress, TlsFiles, tls_files

__all__ = ["LINK_OPTIONS", "SchedulerLinkConfig"]

LINK_OPTIONS = ("transport", "scheduler_target", "failover_after_ms")
"""Options without effect where no scheduler is attached to."""


_MAX_TARGETS = 4
"""Lanes of an executor (transport.lanes.MAX_LANES, whose import takes too long for `--help`)."""


class SchedulerLinkConfig(ProcessSettings):
    """The executor's side of its links to schedulers."""

    env_prefix = "SPECSCHED_EXECUTOR_"

    transport: Literal["auto", "shared-memory", "inline"] = Field(
        "auto",
        description="How steps travel. auto: through shared memory with schedulers that can map it,"
        " else inline, on the gRPC stream",
    )
    scheduler_target: list[str] = Field(
        [],
        description="TCP address of a scheduler, host:port, besides those in the run directory; may"
        " be repeated, in the variable separated by commas. Other machines need the three TLS"
        " options",
    )
    scheduler_tls_ca: Path | None = Field(
        None, description="PEM certificates of who signs the schedulers' certificates"
    )
    scheduler_tls_cert: Path | None = Field(
        None, description="PEM certificate shown to schedulers, with the chain to its CA"
    )
    scheduler_tls_key: Path | None = Field(None, description="PEM key of that certificate")

    failover_after_ms: float = Field(
        500.0,
        ge=50,
        le=60_000,
        description="Time in which the active scheduler may leave every step without a plan before"
        " a shadow that has plans takes over",
    )

    @field_validator("scheduler_target", mode="before")
    @classmethod
    def _split_targets(cls, value: object) -> object:
        return value.split(",") if isinstance(value, str) else value

    @field_validator("scheduler_target")
    @classmethod
    def _check_targets(cls, targets: list[str]) -> list[str]:
        addresses = [str(TcpAddress.parse(target)) for target in targets]
        twice = {address for address in addresses if addresses.count(address) > 1}
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))} is given more than once")
        if len(addresses) > _MAX_TARGETS:
            raise ValueError(f"accepted: at most {_MAX_TARGETS}, given are {len(addresses)}")
        return addresses

    @model_validator(mode="after")
    def _check_links(self) -> Self:
        files = self.scheduler_tls
        if files is not None and not self.scheduler_target:
            raise ValueError(
                "scheduler_tls_ca, scheduler_tls_cert, scheduler_tls_key have no effect without"
                " scheduler_target"
            )
        for address in self.scheduler_addresses:
            self._check_address(address, files)
        return self

    def _check_address(self, address: TcpAddress, files: TlsFiles | None) -> None:
        if address.is_loopback:
            return
        if files is None:
            raise ValueError(
                f"scheduler_target = {str(address)!r} is on another machine, so both ends must"
                " prove who they are: give scheduler_tls_ca, scheduler_tls_cert and"
                " scheduler_tls_key"
            )
        if self.transport == "shared-memory":
            raise ValueError(
                f"transport = 'shared-memory' cannot reach scheduler_target = {str(address)!r};"
                " accepted: auto or inline"
            )

    @property
    def scheduler_addresses(self) -> tuple[TcpAddress, ...]:
        """The addresses of `scheduler_target`."""
        return tuple(TcpAddress.parse(target) for target in self.scheduler_target)

    @property
    def scheduler_tls(self) -> TlsFiles | None:
        """The files for `scheduler_target`; None: plain text."""
        return tls_files(
            ca=self.scheduler_tls_ca,
            certificate=self.scheduler_tls_cert,
            key=self.scheduler_tls_key,
            options=("scheduler_tls_ca", "scheduler_tls_cert", "scheduler_tls_key"),
        )
