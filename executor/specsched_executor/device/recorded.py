"""Outcomes of a recording in place of a target's, for models whose weights are not there."""

from __future__ import annotations

import torch
from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.slot_tables import SlotTables
from specsched_kernels.verify_drafts import VerifyOutcome

from specsched_executor.device.drafter import ContextRows, DeviceDrafter, DraftJob
from specsched_executor.device.step_arrays import RequestInputs
from specsched_executor.drafters.acceptance_trace import AcceptanceTrace

__all__ = ["RecordedDrafter"]


class RecordedDrafter:
    """A drafter that does all its work and then says what was recorded.

    Drafts are its own; their confidences, and how many of them are accepted, are those of one step
    of the trace. Which step follows from the request's seed and the number of its tokens alone, so
    that every policy meets the same easy and hard places, and nothing is remembered.
    """

    is_idle = False

    def __init__(
        self, drafter: DeviceDrafter, trace: AcceptanceTrace, device: torch.device
    ) -> None:
        self.name = f"{drafter.name}, synthetic acceptance"
        self._drafter = drafter
        self._confidence = torch.from_numpy(trace.confidence).to(device)
        self._num_accepted = torch.from_numpy(trace.num_accepted).to(device)
        self._greedy = torch.from_numpy(trace.greedy.row_at).to(device)
        self._sampled = torch.from_numpy(trace.sampled.row_at).to(device)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """See DeviceDrafter."""
        return self._drafter.feature_layers

    @property
    def distribution(self) -> DraftDistribution | None:
        """See DeviceDrafter."""
        return self._drafter.distribution

    def take_in(self, rows: ContextRows) -> None:
        """See DeviceDrafter."""
        self._drafter.take_in(rows)

    def draft(self, job: DraftJob) -> tuple[torch.Tensor, torch.Tensor]:
        """The drafter's tokens with recorded confidences."""
        token_ids, _ = self._drafter.draft(job)
        num_tokens = job.tables.num_tokens[job.requests.slot_ids.clamp(min=0)]
        rows = self._rows(job.requests, num_tokens)
        return token_ids, self._confidence[rows, : job.num_tokens].contiguous()

    def decide(
        self,
        requests: RequestInputs,
        tables: SlotTables,
        start_positions: torch.Tensor,
        verify_lens: torch.Tensor,
        outcome: VerifyOutcome,
    ) -> None:
        """Put what was recorded for the drafts that were verified into `outcome`, in place.

        The token after the accepted ones is the one that the target's verification ended with.
        """
        rows = self._rows(requests, start_positions + 1)
        num_accepted = torch.minimum(self._num_accepted[rows], verify_lens)
        last = outcome.token_ids.gather(1, outcome.num_accepted.long()[:, None])
        drafts = tables.draft_token_ids[requests.slot_ids.clamp(min=0)]
        columns = torch.arange(drafts.shape[1], device=drafts.device)
        is_accepted = columns < num_accepted[:, None]
        outcome.token_ids.copy_(last.expand_as(outcome.token_ids))
        outcome.token_ids[:, :-1] = torch.where(is_accepted, drafts, last)
        outcome.num_accepted.copy_(num_accepted)

    def _rows(self, requests: RequestInputs, num_tokens: torch.Tensor) -> torch.Tensor:
        """The recorded step of each request; int64 [R]."""
        greedy, sampled = (
            table[requests.seeds % len(table), num_tokens % table.shape[1]]
            for table in (self._greedy, self._sampled)
        )
        return torch.where(requests.temperature > 0, sampled, greedy)
