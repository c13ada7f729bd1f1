"""Rules on logits that hold before anything is sampled."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["suppress_early_stops"]


def suppress_early_stops(logits: torch.Tensor, token_ids: Sequence[int]) -> None:
    """Make tokens that would end the output impossible, in place. logits: float32 [m, V]."""
    logits[:, list(token_ids)] = -torch.inf
