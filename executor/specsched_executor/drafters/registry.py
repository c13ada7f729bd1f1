"""Drafters by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specsched_executor.core import Drafter
from specsched_executor.drafters.dspark import DSparkDrafter, load_checkpoint
from specsched_executor.drafters.ngram import NgramDrafter
from specsched_executor.drafters.none import NoDrafter
from specsched_executor.model import DecoderModel

__all__ = ["DRAFTERS", "DrafterSetting", "create_drafter"]

DRAFTERS = ("none", "ngram", "dspark")


@dataclass(frozen=True, slots=True)
class DrafterSetting:
    """What a drafter that is a model needs: its checkpoint, and the target it drafts for."""

    checkpoint: Path
    target: DecoderModel
    num_slots: int
    max_context_tokens: int | None = None


def create_drafter(
    name: str, max_draft_tokens: int, setting: DrafterSetting | None = None
) -> Drafter:
    """A drafter of up to `max_draft_tokens` per request.

    Raises ValueError for an unknown name or a model without a setting, DrafterCheckpointError (a
    ValueError) for a checkpoint that does not fit.
    """
    if name == "none":
        return NoDrafter()
    if name == "ngram":
        return NgramDrafter(max_draft_tokens)
    if name != "dspark":
        raise ValueError(f"drafter is {name!r}; accepted: {', '.join(DRAFTERS)}")
    if setting is None:
        raise ValueError("drafter 'dspark' is a model: it needs a checkpoint and a target")
    return DSparkDrafter(
        load_checkpoint(setting.checkpoint),
        setting.target,
        num_slots=setting.num_slots,
        max_draft_tokens=max_draft_tokens,
        max_context_tokens=setting.max_context_tokens,
    )
