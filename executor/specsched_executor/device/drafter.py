"""The seam for drafters that run on the device, within the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.slot_tables import SlotTables
from specsched_kernels.window_pages import CommittedRows

from specsched_executor.device.step_arrays import RequestInputs

__all__ = ["ContextRows", "DeviceDrafter", "DraftJob", "NoDeviceDrafter"]


@dataclass(frozen=True, slots=True)
class ContextRows:
    """The n rows that a step ran, after verification; features: layer -> [n, hidden]."""

    features: Mapping[int, torch.Tensor]
    committed: CommittedRows


@dataclass(frozen=True, slots=True)
class DraftJob:
    """Draft `num_tokens` for each of R requests; all tensors on the device.

    Of the first R requests those with slot -1 are padding. step_id: int64 [1]. draws: whether any
    request samples at a temperature; if not, tokens are the likeliest.
    """

    requests: RequestInputs
    tables: SlotTables
    step_id: torch.Tensor
    num_tokens: int
    draws: bool


@runtime_checkable
class DeviceDrafter(Protocol):
    """A drafter that reads and writes device memory alone, so that graphs can capture it."""

    @property
    def name(self) -> str:
        """Its name in options and statuses."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Target layers whose hidden states it needs; () for none."""

    @property
    def distribution(self) -> DraftDistribution | None:
        """What drafts were sampled from, by slot; None: a point mass on each."""

    @property
    def is_idle(self) -> bool:
        """Whether it never drafts."""

    def take_in(self, rows: ContextRows) -> None:
        """Keep what later drafts need of the rows that a step ran."""

    def draft(self, job: DraftJob) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids int64 [R, num_tokens] and confidences float32 [R, num_tokens].

        Fills `distribution` of the slots where any request draws.
        """


class NoDeviceDrafter:
    """Drafts nothing."""

    name = "none"
    feature_layers: tuple[int, ...] = ()
    distribution: DraftDistribution | None = None
    is_idle = True

    def take_in(self, rows: ContextRows) -> None:
        """Nothing to keep."""

    def draft(self, job: DraftJob) -> tuple[torch.Tensor, torch.Tensor]:
        """Never asked."""
        num_requests = job.requests.slot_ids.shape[0]
        device = job.requests.slot_ids.device
        token_ids = torch.zeros(num_requests, job.num_tokens, dtype=torch.int64, device=device)
        return token_ids, torch.full(token_ids.shape, torch.nan, device=device)
