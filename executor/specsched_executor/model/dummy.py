"""Random weights in the shape of a model: for tests and measurements, not for answers."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import torch

from specsched_executor.model._errors import ModelNotFoundError
from specsched_executor.model.huggingface import ConfigFacts, read_spec, spec_of
from specsched_executor.model.spec import DecoderSpec
from specsched_executor.presets import PRESETS
from specsched_executor.tokenizer import (
    BYTE_EOS_TOKEN_ID,
    Tokenizer,
    byte_tokenizer,
    tokenizer_from_huggingface,
)

__all__ = ["DummyCheckpoint"]


class DummyCheckpoint:
    """Implements Checkpoint. A tensor's values follow from its name and device alone."""

    def __init__(
        self, source: Path, spec: DecoderSpec, load_tokenizer: Callable[[], Tokenizer]
    ) -> None:
        self.source = source
        self.spec = spec
        self._load_tokenizer = load_tokenizer

    @classmethod
    def of_preset(cls, preset: str) -> DummyCheckpoint:
        """In the shape of one of PRESETS, with a token for each byte; ValueError for another."""
        if preset not in PRESETS:
            raise ValueError(f"preset is {preset!r}; accepted: {', '.join(PRESETS)}")
        facts = ConfigFacts(Path(f"preset {preset}"), PRESETS[preset])
        return cls(Path(preset), spec_of(facts, preset, (BYTE_EOS_TOKEN_ID,)), byte_tokenizer)

    @classmethod
    def of_folder(cls, folder: Path) -> DummyCheckpoint:
        """In the shape that config.json of a folder gives, with the tokenizer there."""
        if not (folder / "config.json").is_file():
            raise ModelNotFoundError(
                f"random weights need a shape, and {folder} is no folder with config.json;"
                " accepted: one with that and the tokenizer's files"
            )
        spec = read_spec(folder)
        eos = spec.config.eos_token_ids
        return cls(folder, spec, lambda: tokenizer_from_huggingface(folder, eos))

    def tensor(self, name: str, out: torch.Tensor) -> torch.Tensor:
        """Norms of one, no biases; matrices that keep the variance of what they multiply."""
        if name.endswith("bias"):
            return out.zero_()
        if out.dim() == 1:
            return out.fill_(1.0)
        generator = torch.Generator(out.device).manual_seed(zlib.crc32(name.encode()))
        # The embedding is looked up, not multiplied with.
        columns = 1 if name == "model.embed_tokens.weight" else out.shape[-1]
        bound = (3.0 / columns) ** 0.5
        return out.uniform_(-bound, bound, generator=generator)

    def unread(self) -> tuple[str, ...]:
        """Every tensor is made when it is asked for."""
        return ()

    def load_tokenizer(self) -> Tokenizer:
        """See Checkpoint."""
        return self._load_tokenizer()

    def close(self) -> None:
        """There is nothing to release."""
