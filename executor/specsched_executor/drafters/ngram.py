"""Prompt lookup: a request that repeats itself is drafted from its own history.

After Saxena, "Prompt lookup decoding" (2023), https://github.com/apoorvumang/prompt-lookup-decoding.
"""

from __future__ import annotations

import numpy as np
import torch

from specsched_executor.core import DraftInput, DraftOutput
from specsched_executor.drafters.acceptance import AcceptanceStatistics
from specsched_executor.drafters.suffix_index import SuffixIndex

__all__ = ["NgramDrafter"]

_CLASS_LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Longest match of each class but the last."""
_MAX_MEASURED_LENGTH = 25


class NgramDrafter:
    """Drafts what followed the latest earlier occurrence of the request's longest known suffix.

    Confidence is the running acceptance rate of drafts of the same match length and position; it
    looks at no draft token, only at the committed history. Drafts are a point mass.
    """

    name = "ngram"
    feature_layers: tuple[int, ...] = ()

    def __init__(
        self, max_draft_tokens: int, *, min_match_tokens: int = 2, max_match_tokens: int = 4
    ) -> None:
        """Raises ValueError unless 1 <= min_match_tokens <= max_match_tokens <= 24."""
        if not 1 <= min_match_tokens <= max_match_tokens < _MAX_MEASURED_LENGTH:
            raise ValueError(
                f"match lengths are {min_match_tokens} to {max_match_tokens}; accepted: 1 to"
                f" {_MAX_MEASURED_LENGTH - 1}, the shortest first"
            )
        self._max_draft_tokens = max_draft_tokens
        self._match_lengths = (min_match_tokens, max_match_tokens)
        self._statistics = AcceptanceStatistics(len(_CLASS_LIMITS) + 1, max_draft_tokens)
        self._indexes: dict[int, tuple[int, SuffixIndex]] = {}
        self._drafted_classes: dict[tuple[int, int], int] = {}

    def draft(self, inputs: DraftInput) -> DraftOutput:
        """Look up every request's suffix."""
        num_requests, k = len(inputs.histories), self._max_draft_tokens
        token_ids = np.zeros((num_requests, k), dtype=np.int64)
        num_draft_tokens = np.zeros(num_requests, dtype=np.int64)
        confidence = np.full((num_requests, k), np.nan, dtype=np.float32)
        by_class = self._statistics.confidence()
        keys = zip(inputs.slot_ids.tolist(), inputs.generations.tolist(), strict=True)
        limits = inputs.max_draft_tokens.tolist()
        for row, (key, history) in enumerate(zip(keys, inputs.histories, strict=True)):
            limit = min(limits[row], k)
            index = self._index(*key)
            match = index.find(history) if limit else None
            if match is not None:
                token_ids[row, :limit] = index.continuation(match.start, limit)
                num_draft_tokens[row] = limit
                draft_class = _class_of(match.length)
                confidence[row] = by_class[draft_class]
                self._drafted_classes[key] = draft_class
        return DraftOutput(
            token_ids=torch.from_numpy(token_ids),
            num_draft_tokens=torch.from_numpy(num_draft_tokens),
            confidence=torch.from_numpy(confidence),
        )

    def observe(
        self,
        slot_ids: torch.Tensor,
        generations: torch.Tensor,
        num_verified: torch.Tensor,
        num_accepted: torch.Tensor,
    ) -> None:
        """Count the outcomes of drafts; those not verified say nothing."""
        outcomes = torch.stack((slot_ids, generations, num_verified, num_accepted), dim=1).tolist()
        for slot_id, generation, verified, accepted in outcomes:
            draft_class = self._drafted_classes.pop((slot_id, generation), None)
            if draft_class is not None and verified:
                self._statistics.observe(draft_class, verified, accepted)

    def release(self, slot_id: int) -> None:
        """Drop the history index of a slot."""
        generation, _ = self._indexes.pop(slot_id, (0, None))
        self._drafted_classes.pop((slot_id, generation), None)

    def _index(self, slot_id: int, generation: int) -> SuffixIndex:
        held = self._indexes.get(slot_id)
        if held is None or held[0] != generation:
            held = (generation, SuffixIndex(*self._match_lengths, _MAX_MEASURED_LENGTH))
            self._indexes[slot_id] = held
        return held[1]


def _class_of(match_length: int) -> int:
    return int(np.searchsorted(_CLASS_LIMITS, match_length))
