"""The newest draft of every slot."""

from __future__ import annotations

import torch

from specsched_executor.calibration import ConfidenceCalibration
from specsched_executor.core import DraftOutput

__all__ = ["DraftTable"]


class DraftTable:
    """Drafts by slot, readable only under the generation they were made for.

    token_ids: int64 [S, k]. confidence: float32 [S, k], calibrated, NaN where there is none; raw
    confidence: the drafter's own. Distributions of a stochastic drafter stay in its output and are
    gathered by row.
    """

    def __init__(self, num_slots: int, max_draft_tokens: int) -> None:
        self._token_ids = torch.zeros(num_slots, max_draft_tokens, dtype=torch.int64)
        self._confidence = torch.full((num_slots, max_draft_tokens), torch.nan)
        self._raw_confidence = self._confidence.clone()
        self._generations = torch.zeros(num_slots, dtype=torch.int64)
        self._rows = torch.zeros(num_slots, dtype=torch.int64)
        self._distribution: torch.Tensor | None = None
        self._prior = _RunningMean(max_draft_tokens)

    @property
    def max_draft_tokens(self) -> int:
        """k, the width of the table."""
        return self._token_ids.shape[1]

    def clear(self) -> None:
        """Forget all drafts. Generation 0 is never handed out."""
        self._generations.zero_()
        self._distribution = None

    def store(
        self,
        slot_ids: torch.Tensor,
        generations: torch.Tensor,
        output: DraftOutput,
        is_greedy: torch.Tensor | None = None,
        calibration: ConfidenceCalibration | None = None,
    ) -> None:
        """Keep the drafts of these slots, int64 [R]; all older ones are gone.

        calibration: by which they will be ranked, of requests that are greedy or not, bool [R].
        """
        num_positions = min(output.token_ids.shape[1], self._token_ids.shape[1])
        self.clear()
        self._generations[slot_ids] = generations
        self._token_ids[slot_ids, :num_positions] = output.token_ids[:, :num_positions]
        self._raw_confidence[slot_ids] = torch.nan
        self._raw_confidence[slot_ids, :num_positions] = output.confidence[:, :num_positions]
        confidence = self._raw_confidence[slot_ids]
        if calibration is not None and is_greedy is not None:
            confidence = calibration.apply(confidence, is_greedy)
        self._confidence[slot_ids] = confidence
        self._rows[slot_ids] = torch.arange(len(slot_ids))
        self._distribution = output.distribution
        self._prior.add(confidence)

    def token_ids(self, slot_ids: torch.Tensor) -> torch.Tensor:
        """int64 [R, k]; garbage past each request's drafts."""
        return self._token_ids[slot_ids]

    def confidence(self, slot_ids: torch.Tensor, generations: torch.Tensor) -> torch.Tensor:
        """float32 [R, k]; NaN throughout where the newest drafts were not made for this request."""
        return self._current(self._confidence, slot_ids, generations)

    def raw_confidence(self, slot_ids: torch.Tensor, generations: torch.Tensor) -> torch.Tensor:
        """The same as the drafter gave them: for schedulers, which calibrate themselves."""
        return self._current(self._raw_confidence, slot_ids, generations)

    def _current(
        self, table: torch.Tensor, slot_ids: torch.Tensor, generations: torch.Tensor
    ) -> torch.Tensor:
        is_current = self._generations[slot_ids] == generations
        return table[slot_ids].masked_fill(~is_current[:, None], torch.nan)

    def distribution(self, slot_ids: torch.Tensor) -> torch.Tensor | None:
        """float32 [R, n, V], n at least the longest draft; garbage past each request's drafts.

        None: a point mass on each.
        """
        if self._distribution is None:
            return None
        num_rows = self._distribution.shape[0]
        rows = self._rows[slot_ids].clamp(max=max(0, num_rows - 1))
        if len(rows) <= num_rows and torch.equal(rows, torch.arange(len(rows))):
            return self._distribution[: len(rows)]  # as most steps find it: nothing is copied
        return self._distribution[rows]

    def prior(self) -> torch.Tensor:
        """float32 [k]: mean confidence per position in OLDER steps, for drafts without one.

        The newest drafts are left out: their own ranking must not depend on later tokens of theirs.
        """
        return self._prior.before_last


class _RunningMean:
    """Mean of the valid confidences per position, recent steps weighing more; 0.5 before any."""

    _DECAY = 0.95

    def __init__(self, num_positions: int) -> None:
        self._sum = torch.full((num_positions,), 0.5)
        self._count = torch.ones(num_positions)
        self.before_last = torch.full((num_positions,), 0.5)

    def add(self, confidence: torch.Tensor) -> None:
        self.before_last = self._sum / self._count
        valid = (confidence >= 0) & (confidence <= 1)
        self._sum = self._sum * self._DECAY + torch.where(valid, confidence, 0.0).sum(dim=0)
        self._count = self._count * self._DECAY + valid.sum(dim=0)
