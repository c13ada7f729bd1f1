"""Rules on logits that look at a request's tokens, in plain torch, one row at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_kernels.rule_tables import LogitRuleTables

__all__ = ["RuledRequests", "apply_logit_rules", "count_tokens"]


@dataclass(frozen=True, slots=True)
class RuledRequests:
    """Which of R requests have rules: the first count, int32 [1], of indexes, int32 [R].

    slot_ids: int64 [R], of all R requests.
    """

    count: torch.Tensor
    indexes: torch.Tensor
    slot_ids: torch.Tensor

    def tolist(self) -> list[tuple[int, int]]:
        """Index and slot of each."""
        indexes = self.indexes[: int(self.count)].tolist()
        return [(index, int(self.slot_ids[index])) for index in indexes]


def apply_logit_rules(  # noqa: PLR0917 -- what is changed, the rules, the rows
    logits: torch.Tensor,
    tables: LogitRuleTables,
    ruled: RuledRequests,
    logit_start_loc: torch.Tensor,
    output_positions: torch.Tensor,
    draft_token_ids: torch.Tensor,
) -> None:
    """See `specsched_kernels.logit_rules.apply_logit_rules`."""
    for index, slot in ruled.tolist():
        first, end = logit_start_loc[index : index + 2].tolist()
        drafts = draft_token_ids[slot].tolist()
        for offset in range(end - first):
            position = int(output_positions[index]) + offset
            _rule_row(logits[first + offset], tables, slot, drafts[:offset], position)


def _rule_row(
    row: torch.Tensor, tables: LogitRuleTables, slot: int, drafts: list[int], position: int
) -> None:
    num_biases, num_stops = int(tables.num_biases[slot]), int(tables.num_stops[slot])
    biased = tables.bias_token_ids[slot, :num_biases].long()
    row[biased] += tables.biases[slot, :num_biases]
    if tables.num_seen[slot]:
        _penalize(row, tables, slot, drafts)
    if position < tables.min_positions[slot]:
        row[tables.stop_token_ids[slot, :num_stops].long()] = -torch.inf


def _penalize(row: torch.Tensor, tables: LogitRuleTables, slot: int, drafts: list[int]) -> None:
    num_seen = int(tables.num_seen[slot])
    counts = dict(tables.seen[slot, :num_seen].tolist())
    for token_id in drafts:
        counts[token_id] = counts.get(token_id, 0) + 1
    token_ids = torch.tensor(list(counts))
    count = torch.tensor(list(counts.values()), dtype=torch.float32)
    repetition, frequency, presence = tables.factors[slot]
    values = row[token_ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * count
    row[token_ids] = values - presence * (count > 0)


def count_tokens(
    tables: LogitRuleTables,
    ruled: RuledRequests,
    token_ids: torch.Tensor,
    num_accepted: torch.Tensor,
) -> None:
    """See `specsched_kernels.logit_rules.count_tokens`."""
    for index, slot in ruled.tolist():
        if tables.num_seen[slot]:
            for token_id in token_ids[index, : int(num_accepted[index]) + 1].tolist():
                _count(tables, slot, token_id)


def _count(tables: LogitRuleTables, slot: int, token_id: int) -> None:
    num_seen = int(tables.num_seen[slot])
    place = (tables.seen[slot, :num_seen, 0] == token_id).nonzero()
    if len(place):
        tables.seen[slot, place[0, 0], 1] += 1
    elif num_seen < tables.sizes.max_seen:
        tables.seen[slot, num_seen] = torch.tensor([token_id, 1])
        tables.num_seen[slot] += 1
