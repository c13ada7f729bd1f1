"""Options that say where clients reach the gateway API. Importable without torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator
from specsched_protocol.listening import ListenAddress, ListenOptions

from specsched_executor.synthetic_config import SyntheticConfig

__all__ = ["ListenConfig"]

_CORES_PER_FRONT_END: Final = 4
_MAX_FRONT_ENDS: Final = 8


class ListenConfig(SyntheticConfig, ListenOptions):
    """Who serves the gateway API; a second address of it, and who may use that."""

    env_prefix = "SPECSCHED_EXECUTOR_"

    front_end: Literal["auto", "process", "thread"] = Field(
        "auto",
        description="Where clients are served: process: one beside the engine's, which then has its"
        " interpreter for itself; thread: in the engine's process; auto: process on a GPU",
    )
    front_ends: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Processes that serve clients, all on the same port. A connection stays with"
        " one of them, so more help where clients have several connections; none: one, on a GPU one"
        " per 4 cores, at most 8",
        json_schema_extra={"unit": "processes"},
    )
    max_messages_per_second: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="Messages of all streams of a front end together, tokens beyond that being"
        " merged: fewer leave it more time for new requests; none: 4000, in a process of its own"
        " as many as it manages",
        json_schema_extra={"unit": "messages/s"},
    )
    listen: ListenAddress = Field(
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

    def num_front_ends(self, *, is_on_gpu: bool) -> int:
        """Processes to serve clients with; 0: none but the engine's."""
        if self.front_end == "thread" or (
            self.front_end == "auto" and not is_on_gpu and self.front_ends is None
        ):
            return 0
        num_cores = len(os.sched_getaffinity(0))
        by_default = min(_MAX_FRONT_ENDS, max(1, num_cores // _CORES_PER_FRONT_END))
        return self.front_ends or (by_default if is_on_gpu else 1)

    @model_validator(mode="after")
    def _check_front_ends(self) -> Self:
        if self.front_end == "thread" and self.front_ends is not None:
            raise ValueError(
                f"front_ends = {self.front_ends} with front_end = thread; accepted: front_end auto"
                " or process"
            )
        return self

    @model_validator(mode="after")
    def _check_listening(self) -> Self:
        self.check_listening(
            "allow_plaintext where the network lets none but trusted peers in",
            allow_plaintext=self.allow_plaintext,
        )
        return self
