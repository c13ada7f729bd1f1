"""Which backends will run a model's attention, decided before a weight is read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_executor.model._errors import UnsupportedModelError
from specsched_executor.model.backend_traits import BackendTraits, CaptureLevel, refusals
from specsched_executor.model.sparse_mla.layouts import (
    IndexerLayout,
    IndexerPlan,
    indexer_traits,
    probe_indexer,
)
from specsched_executor.model.spec import DecoderSpec

__all__ = ["AttentionPlan", "plan_attention"]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """traits: of every backend that runs a part of it. indexer: None for grouped attention."""

    traits: tuple[BackendTraits, ...]
    indexer: IndexerPlan | None = None

    @property
    def name(self) -> str:
        """For logs and clients."""
        return "grouped" if self.indexer is None else f"sparse-mla-{self.indexer.layout()}"


def plan_attention(
    spec: DecoderSpec,
    device: torch.device,
    *,
    is_scheduled: bool = True,
    layout: IndexerLayout | None = None,
) -> AttentionPlan:
    """The plan for a model on a device; finds out what the device can, which may take seconds.

    is_scheduled: whether a scheduler may decide what is verified. layout: of the indexer's queries
    whatever else would be chosen. Raises ValueError where there is no indexer, and
    UnsupportedModelError, with all reasons, where the device or a scheduler cannot have it so.
    """
    if spec.sparse_mla is None:
        if layout is not None:
            raise ValueError(
                f"indexer_layout = {layout} has no effect: {spec.config.name} has no indexer"
            )
        traits = BackendTraits("grouped attention", CaptureLevel.ALWAYS, lengths_may_differ=True)
        return AttentionPlan((traits,))
    found = probe_indexer(device, spec.sparse_mla.index_heads)
    indexer = IndexerPlan(found, is_scheduled=is_scheduled, forced=layout)
    latent = BackendTraits("sparse latent attention", CaptureLevel.ALWAYS, lengths_may_differ=True)
    plan = AttentionPlan((indexer_traits(indexer.layout()), latent), indexer)
    _refuse_unusable(plan, indexer)
    return plan


def _refuse_unusable(plan: AttentionPlan, indexer: IndexerPlan) -> None:
    reasons = [f"this device cannot: {indexer.obstacle}"] if indexer.obstacle else []
    accepted = "another indexer_layout, such as auto"
    if indexer.is_scheduled and (refused := refusals(plan.traits)):
        reasons.append("a scheduler cannot decide what is verified: " + "; ".join(refused))
        accepted += ", or scheduler = off where only the scheduler stands against it"
    if reasons:
        raise UnsupportedModelError(
            f"indexer_layout = {indexer.forced or 'auto'} cannot be had here: {'; '.join(reasons)}."
            f" Accepted: {accepted}"
        )
