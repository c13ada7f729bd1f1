"""Generated sequences, on the device that trains on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["Corpus", "TrainingBatch"]


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """token_ids: int64 [S, T], right-padded. anchors: int64 [S, A], positions in their answer.

    num_labels: int64 [S, A], rows of each block that have a token to predict, 0 for a block that
    is there for the shape only.
    """

    token_ids: torch.Tensor
    anchors: torch.Tensor
    num_labels: torch.Tensor


class Corpus:
    """Room for `capacity` sequences of `max_tokens`."""

    def __init__(self, capacity: int, max_tokens: int, device: torch.device) -> None:
        self._tokens = torch.zeros(capacity, max_tokens, dtype=torch.int32, device=device)
        self._lengths = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._answer_starts = torch.zeros_like(self._lengths)
        self._temperatures = torch.zeros(capacity, device=device)
        self._num_sequences = 0
        self._num_tokens = 0

    @property
    def num_sequences(self) -> int:
        """Sequences held."""
        return self._num_sequences

    @property
    def num_tokens(self) -> int:
        """Their tokens, prompts included."""
        return self._num_tokens

    @property
    def is_full(self) -> bool:
        """Whether there is no room left."""
        return self._num_sequences == len(self._tokens)

    @property
    def answer_tokens(self) -> int:
        """Tokens that the target wrote as answers."""
        used = slice(self._num_sequences)
        return int((self._lengths[used] - self._answer_starts[used]).sum())

    def add(
        self,
        token_ids: torch.Tensor,
        lengths: torch.Tensor,
        answer_starts: torch.Tensor,
        temperatures: torch.Tensor,
    ) -> None:
        """Keep as many of these sequences, int64 [n, T], as there is room for."""
        num = min(len(token_ids), len(self._tokens) - self._num_sequences)
        into = slice(self._num_sequences, self._num_sequences + num)
        self._tokens[into] = token_ids[:num].to(torch.int32)
        self._lengths[into] = lengths[:num]
        self._answer_starts[into] = answer_starts[:num]
        self._temperatures[into] = temperatures[:num]
        self._num_sequences += num
        self._num_tokens += int(lengths[:num].sum())

    def extend(self, other: Corpus) -> None:
        """Add what another corpus of the same max_tokens holds."""
        used = slice(other.num_sequences)
        self.add(
            other._tokens[used],
            other._lengths[used],
            other._answer_starts[used],
            other._temperatures[used],
        )

    def draw(
        self, rows: torch.Tensor, num_anchors: int, block_size: int, generator: torch.Generator
    ) -> TrainingBatch:
        """Anchors at random, without repetition, among the tokens of the answers but the last."""
        token_ids = self._tokens[rows].long()
        position = torch.arange(token_ids.shape[1], device=rows.device)
        first, last = self._answer_starts[rows], self._lengths[rows] - 2
        is_anchor = (position >= first[:, None]) & (position <= last[:, None])
        keys = torch.rand(is_anchor.shape, device=rows.device, generator=generator)
        keys, anchors = (keys + ~is_anchor).topk(num_anchors, dim=1, largest=False)
        # A short answer has too few: the rest repeat nothing and teach nothing.
        num_labels = (last[:, None] + 1 - anchors).clamp(max=block_size) * (keys < 1)
        return TrainingBatch(token_ids, anchors, num_labels)

    def save(self, path: Path) -> None:
        """Write what is held, in the sizes it needs."""
        used = slice(self._num_sequences)
        torch.save(
            {
                "tokens": self._tokens[used].to(torch.int32).cpu(),
                "lengths": self._lengths[used].cpu(),
                "answer_starts": self._answer_starts[used].cpu(),
                "temperatures": self._temperatures[used].cpu(),
            },
            path,
        )

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Corpus:
        """A full corpus of what `save` wrote."""
        held: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        corpus = cls(len(held["tokens"]), held["tokens"].shape[1], device)
        names = ("tokens", "lengths", "answer_starts", "temperatures")
        corpus.add(*(held[name] for name in names))
        return corpus
