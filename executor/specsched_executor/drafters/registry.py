"""Drafters by name."""

from __future__ import annotations

from specsched_executor.core import Drafter
from specsched_executor.drafters.ngram import NgramDrafter
from specsched_executor.drafters.none import NoDrafter

__all__ = ["DRAFTERS", "create_drafter"]

DRAFTERS = ("none", "ngram")


def create_drafter(name: str, max_draft_tokens: int) -> Drafter:
    """A drafter of up to `max_draft_tokens` per request. Raises ValueError for an unknown name."""
    if name == "none":
        return NoDrafter()
    if name == "ngram":
        return NgramDrafter(max_draft_tokens)
    raise ValueError(f"drafter is {name!r}; accepted: {', '.join(DRAFTERS)}")
