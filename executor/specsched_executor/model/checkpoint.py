"""The seam between checkpoint formats and the model built from them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from specsched_executor.model.spec import DecoderSpec
from specsched_executor.tokenizer import Tokenizer


class Checkpoint(Protocol):
    """Weights under the names Hugging Face gives them, whatever the file calls them."""

    @property
    def source(self) -> Path:
        """The file or folder, for messages."""

    @property
    def spec(self) -> DecoderSpec:
        """The architecture these weights are for."""

    def tensor(self, name: str, out: torch.Tensor) -> torch.Tensor:
        """Fill `out`, contiguous float32 on any device, with the tensor of this name; return it.

        Rows of q and k come in rotate-half order. Raises ModelFormatError when the tensor is
        missing or has another shape than `out`.
        """

    def unread(self) -> tuple[str, ...]:
        """Names of tensors that there are and nobody asked for yet."""

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer that belongs to the weights."""

    def close(self) -> None:
        """Release the file; tensors handed out stay valid."""
