"""How well a drafter fits text that is given: quick, and no measure of what is served.

Acceptance here is that of drafts after the text's own tokens; `specsched eval drafter` measures
real generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from specsched_executor.training.corpus import Corpus
from specsched_executor.training.losses import BlockRows, block_rows
from specsched_executor.training.network import TrainableDrafter
from specsched_executor.training.target import TrainingTarget

__all__ = ["ForcedMetrics", "forced_metrics"]

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class ForcedMetrics:
    """Per block position: mean acceptance, agreement of the likeliest tokens, confidence.

    expected_sampled, expected_greedy: accepted drafts of a block, were its prefix the text's.
    """

    num_blocks: int
    acceptance: list[float]
    agreement: list[float]
    confidence: list[float]
    expected_sampled: float
    expected_greedy: float

    def to_json(self) -> dict[str, Any]:
        """For manifests."""
        return {
            "teacher_forced": True,
            "num_blocks": self.num_blocks,
            "acceptance": [round(value, 4) for value in self.acceptance],
            "agreement": [round(value, 4) for value in self.agreement],
            "confidence": [round(value, 4) for value in self.confidence],
            "expected_sampled": round(self.expected_sampled, 4),
            "expected_greedy": round(self.expected_greedy, 4),
        }


@torch.no_grad()
def forced_metrics(
    network: TrainableDrafter,
    target: TrainingTarget,
    corpus: Corpus,
    *,
    num_sequences: int,
    num_anchors: int,
    seed: int,
) -> ForcedMetrics:
    """Over whole blocks of up to num_sequences answers, num_anchors each; NaN without any."""
    k = network.config.block_size
    generator = torch.Generator(target.device).manual_seed(seed)
    kept: list[torch.Tensor] = []
    for first in range(0, min(num_sequences, corpus.num_sequences), 8):
        last = min(first + 8, corpus.num_sequences)
        index = torch.arange(first, last, device=target.device)
        batch = corpus.draw(index, num_anchors, k, generator)
        rows = block_rows(network, target, batch)
        values = torch.stack(_row_values(network, target, rows)).view(3, -1, k)
        kept.append(values[:, rows.has_label.view(-1, k).all(dim=1)])
    acceptance, agreement, confidence = torch.cat(kept, dim=1)
    return ForcedMetrics(
        num_blocks=len(acceptance),
        acceptance=acceptance.mean(dim=0).tolist(),
        agreement=agreement.mean(dim=0).tolist(),
        confidence=confidence.mean(dim=0).tolist(),
        expected_sampled=float(acceptance.cumprod(dim=1).sum(dim=1).mean()),
        expected_greedy=float(agreement.cumprod(dim=1).sum(dim=1).mean()),
    )


def _row_values(
    network: TrainableDrafter, target: TrainingTarget, rows: BlockRows
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """float32 [n] each: 1 - sum |q - p| / 2, whether the maxima agree, confidence."""
    markov = network.markov(rows.previous_ids)
    out = network.weight("markov_head.markov_w2.weight")
    acceptance, agreement = [], []
    for start in range(0, len(rows.hidden), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        draft = F.linear(rows.hidden[part], target.head).float()
        draft += F.linear(markov[part], out).float()
        expected = F.linear(rows.target_hidden[part], target.head).float()
        agreement.append((draft.argmax(dim=-1) == expected.argmax(dim=-1)).float())
        distance = (draft.softmax(dim=-1) - expected.softmax(dim=-1)).abs().sum(dim=-1)
        acceptance.append(1 - distance / 2)
    confidence = network.confidence_logits(rows.hidden, markov).sigmoid()
    return torch.cat(acceptance), torch.cat(agreement), confidence
