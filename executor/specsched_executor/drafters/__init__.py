"""Who proposes tokens: nobody, or the request's own history."""

from __future__ import annotations

from specsched_executor.drafters.ngram import NgramDrafter
from specsched_executor.drafters.none import NoDrafter
from specsched_executor.drafters.registry import DRAFTERS, create_drafter

__all__ = ["DRAFTERS", "NgramDrafter", "NoDrafter", "create_drafter"]
