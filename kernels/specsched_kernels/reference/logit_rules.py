"""Rules on logits that look at a request's tokens, in plain torch, one row at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_kernels._checks import check_tensor

__all__ = [
    "LogitRuleSizes",
    "LogitRuleTables",
    "RuledRequests",
    "apply_logit_rules",
    "count_tokens",
]

_HEADER_WORDS = 8


@dataclass(frozen=True, slots=True)
class LogitRuleSizes:
    """Most distinct tokens of a request, tokens that are biased, and ids that end its output."""

    max_seen: int
    max_biases: int
    max_stops: int

    @property
    def row_width(self) -> int:
        """int32 words of a slot."""
        return self.seen_begin + 2 * self.max_seen

    @property
    def seen_begin(self) -> int:
        """Words before the seen tokens, which come last since there are many or none."""
        return _HEADER_WORDS + self.max_stops + 2 * self.max_biases


class LogitRuleTables:
    """Rules of the request in each of S slots, and the tokens that penalties look at.

    rows: int32 [S, row_width]; the others are views of it, so that one copy fills a slot. factors:
    float32 [S, 3], penalties by repetition, frequency and presence. seen: int32 [S, C, 2], the
    distinct tokens of prompt and output and how often each is in the output, of which the first
    num_seen, int32 [S], count; 0 where nothing is penalised. bias_token_ids int32 [S, B], biases
    float32 [S, B]: the first num_biases, int32 [S], are added. stop_token_ids: int32 [S, E], the
    first num_stops, int32 [S], are impossible at positions below min_positions, int32 [S].
    """

    def __init__(self, rows: torch.Tensor, sizes: LogitRuleSizes) -> None:
        """Raises ValueError for rows of another width or dtype."""
        check_tensor("rows", rows, (len(rows), sizes.row_width), torch.int32, rows.device)
        self.rows, self.sizes = rows, sizes
        floats = rows.view(torch.float32)
        self.factors = floats[:, :3]
        self.num_seen, self.num_biases = rows[:, 3], rows[:, 4]
        self.num_stops, self.min_positions = rows[:, 5], rows[:, 6]
        stops_end = _HEADER_WORDS + sizes.max_stops
        self.stop_token_ids = rows[:, _HEADER_WORDS:stops_end]
        self.bias_token_ids = rows[:, stops_end : stops_end + sizes.max_biases]
        self.biases = floats[:, stops_end + sizes.max_biases : sizes.seen_begin]
        self.seen = rows[:, sizes.seen_begin :].view(len(rows), sizes.max_seen, 2)

    @classmethod
    def empty(
        cls, num_slots: int, sizes: LogitRuleSizes, device: torch.device | str = "cpu"
    ) -> LogitRuleTables:
        """Tables without rules."""
        shape = (num_slots, sizes.row_width)
        return cls(torch.zeros(shape, dtype=torch.int32, device=device), sizes)


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
