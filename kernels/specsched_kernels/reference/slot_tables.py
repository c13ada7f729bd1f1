"""Per-request tables kept on the device, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_kernels.reference.calibration import calibrated

__all__ = ["DraftRanking", "SlotCommit", "SlotTables", "commit_slots", "read_slots", "store_drafts"]


@dataclass(frozen=True, slots=True)
class SlotTables:
    """What the device knows of the request in each of S slots; the host learns of it a step later.

    anchor_token_ids: int64 [S], last committed token. num_tokens: int64 [S], committed tokens,
    prompt included. draft_token_ids: int64 [S, k]. num_draft_tokens: int32 [S]. confidence: float32
    [S, k], what drafts are ranked by. generations: int64 [S], of the request that the drafts were
    made for.
    """

    anchor_token_ids: torch.Tensor
    num_tokens: torch.Tensor
    draft_token_ids: torch.Tensor
    num_draft_tokens: torch.Tensor
    confidence: torch.Tensor
    generations: torch.Tensor

    @classmethod
    def empty(
        cls, num_slots: int, max_draft_tokens: int, device: torch.device | str = "cpu"
    ) -> SlotTables:
        """Tables of nobody. Generation 0 is never handed out."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            anchor_token_ids=zeros(num_slots),
            num_tokens=zeros(num_slots),
            draft_token_ids=zeros(num_slots, max_draft_tokens),
            num_draft_tokens=zeros(num_slots, dtype=torch.int32),
            confidence=torch.full((num_slots, max_draft_tokens), torch.nan, device=device),
            generations=zeros(num_slots),
        )


@dataclass(frozen=True, slots=True)
class SlotCommit:
    """What a step did to R requests.

    slot_ids: int64 [R], -1 for padding. samples: bool [R]. start_positions: int64 [R].
    num_base_rows: int32 [R]. token_ids: int64 [R, k+1], of which the first num_accepted, int32 [R],
    and one more are committed.
    """

    slot_ids: torch.Tensor
    samples: torch.Tensor
    start_positions: torch.Tensor
    num_base_rows: torch.Tensor
    token_ids: torch.Tensor
    num_accepted: torch.Tensor


@dataclass(frozen=True, slots=True)
class DraftRanking:
    """How confidences are calibrated before drafts are ranked by them.

    temperature, intercept: float32 [2, k], of greedy (0) and of sampled (1) requests; a temperature
    of 0 leaves a position as it is. sampling_temperature: float32 [R], which tells the class: 0 is
    greedy. ranked: float32 [R, k], an output, what the first n drafts of each are ranked by.
    """

    temperature: torch.Tensor
    intercept: torch.Tensor
    sampling_temperature: torch.Tensor
    ranked: torch.Tensor


def read_slots(  # noqa: PLR0917 -- inputs, then outputs
    tables: SlotTables,
    slot_ids: torch.Tensor,
    generations: torch.Tensor,
    given_positions: torch.Tensor,
    draft_limits: torch.Tensor,
    start_positions: torch.Tensor,
    num_draft_tokens: torch.Tensor,
) -> None:
    """Fill the last two, see `specsched_kernels.slot_tables.read_slots`."""
    is_live = slot_ids >= 0
    slots = slot_ids.clamp(min=0)
    anchors = tables.num_tokens[slots] - 1
    positions = torch.where(given_positions >= 0, given_positions, anchors)
    start_positions.copy_(torch.where(is_live, positions, 0))
    is_current = is_live & (tables.generations[slots] == generations)
    present = torch.minimum(tables.num_draft_tokens[slots], draft_limits)
    num_draft_tokens.copy_(torch.where(is_current, present, 0))


def commit_slots(tables: SlotTables, commit: SlotCommit) -> None:
    """See `specsched_kernels.slot_tables.commit_slots`."""
    rows = torch.nonzero((commit.slot_ids >= 0) & commit.samples)[:, 0]
    slots, num_accepted = commit.slot_ids[rows], commit.num_accepted[rows].long()
    tables.anchor_token_ids[slots] = commit.token_ids[rows, num_accepted]
    first = commit.start_positions[rows] + commit.num_base_rows[rows]
    tables.num_tokens[slots] = first + num_accepted + 1
    tables.num_draft_tokens[slots] = 0


def store_drafts(  # noqa: PLR0917 -- tables, keys, values
    tables: SlotTables,
    slot_ids: torch.Tensor,
    generations: torch.Tensor,
    draft_lens: torch.Tensor,
    token_ids: torch.Tensor,
    confidence: torch.Tensor,
    ranking: DraftRanking | None,
) -> None:
    """See `specsched_kernels.slot_tables.store_drafts`."""
    if ranking is not None:
        num_positions = confidence.shape[1]
        of_class = (ranking.sampling_temperature > 0).long()
        temperature, intercept = (
            table[of_class, :num_positions] for table in (ranking.temperature, ranking.intercept)
        )
        confidence = calibrated(confidence, temperature, intercept)
        ranking.ranked[:, :num_positions] = confidence
    rows = torch.nonzero(slot_ids >= 0)[:, 0]
    slots, num_tokens = slot_ids[rows], token_ids.shape[1]
    tables.draft_token_ids[slots, :num_tokens] = token_ids[rows]
    tables.confidence[slots, :num_tokens] = confidence[rows]
    tables.num_draft_tokens[slots] = draft_lens[rows].clamp(min=0, max=num_tokens)
    tables.generations[slots] = generations[rows]
