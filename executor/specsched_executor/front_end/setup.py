"""What a front end is told once, as it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers

from specsched_executor.config import ExecutorConfig
from specsched_executor.gateway import GatewayConfig, ServedModel

__all__ = ["FrontEndSetup"]


@dataclass(frozen=True, slots=True)
class FrontEndSetup:
    """Pickled on its way. The tokenizer is there in two parts."""

    config: ExecutorConfig
    gateway: GatewayConfig
    model: ServedModel
    tokenizer_backend: tokenizers.Tokenizer
    tokenizer_files: Mapping[str, bytes]

    def encode(self, text: str) -> list[int]:
        """See `gateway.Tokenizer`."""
        ids: list[int] = self.tokenizer_backend.encode(text).ids
        return ids

    def files(self) -> Mapping[str, bytes]:
        """See `gateway.Tokenizer`."""
        return self.tokenizer_files
