"""Who proposes tokens: nobody, the request's own history, or a model."""

from __future__ import annotations

from specsched_executor.drafters.ngram import NgramDrafter
from specsched_executor.drafters.none import NoDrafter
from specsched_executor.drafters.registry import DRAFTERS, DrafterSetting, create_drafter

__all__ = ["DRAFTERS", "DrafterSetting", "NgramDrafter", "NoDrafter", "create_drafter"]
