"""Drafts drawn left to right in plain torch, sums in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.reference.uniforms import Purpose, keyed_uniform
from specsched_kernels.temperature import SMALLEST_TEMPERATURE

__all__ = ["DraftDraws", "MarkovBias", "draw_drafts"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class MarkovBias:
    """codes W1 and weights W2 [V, r], of one dtype: token x adds W2 W1[x] to the next logits."""

    codes: torch.Tensor
    weights: torch.Tensor

    def check(self, vocab_size: int, device: torch.device) -> None:
        """Raise ValueError for another vocabulary, dtype or device."""
        shape = (vocab_size, self.codes.shape[-1])
        check_tensor("markov.codes", self.codes, shape, _DTYPES, device)
        check_tensor("markov.weights", self.weights, shape, self.codes.dtype, device)


@dataclass(frozen=True, slots=True)
class DraftDraws:
    """How R requests draw, and where what they drew from is kept.

    temperatures: float32 [R], 0 takes the likeliest token. seeds, positions: int64 [R], of the
    first token. step_id: int64 [1]: a position drafted anew must not repeat its uniform. slot_ids:
    int64 [R], rows of `kept`; of -1, padding, nothing is kept and nothing drawn.
    """

    temperatures: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    step_id: torch.Tensor
    slot_ids: torch.Tensor
    kept: DraftDistribution

    def check(
        self, num_requests: int, num_tokens: int, vocab_size: int, device: torch.device
    ) -> None:
        """Raise ValueError for a tensor of another shape, dtype or device."""
        shape, int64 = (num_requests,), torch.int64
        check_tensor("temperatures", self.temperatures, shape, torch.float32, device)
        for name in ("seeds", "positions", "slot_ids"):
            check_tensor(name, getattr(self, name), shape, int64, device)
        check_tensor("step_id", self.step_id, (1,), int64, device)
        num_slots, num_positions, _ = self.kept.logits.shape
        if num_positions < num_tokens:
            raise ValueError(f"{num_tokens} tokens; accepted: at most {num_positions}, as are kept")
        self.kept.check((num_slots, num_positions, vocab_size), device)


def draw_drafts(
    base_logits: torch.Tensor,
    anchor_ids: torch.Tensor,
    markov: MarkovBias,
    draws: DraftDraws | None,
    out: torch.Tensor,
) -> None:
    """Fill `out`, see `specsched_kernels.draw_drafts`."""
    previous = anchor_ids
    for position in range(base_logits.shape[1]):
        bias = markov.codes[previous].float() @ markov.weights.float().T
        logits = base_logits[:, position] + bias
        out[:, position] = logits.argmax(dim=-1)
        if draws is not None:
            for request, row in enumerate(logits):
                if draws.temperatures[request] > 0 and draws.slot_ids[request] >= 0:
                    out[request, position] = _draw(row, draws, request, position)
        previous = out[:, position]


def _draw(logits: torch.Tensor, draws: DraftDraws, request: int, position: int) -> int:
    scale = 1 / draws.temperatures[request].clamp(min=SMALLEST_TEMPERATURE)
    cumulative = (scale * (logits - logits.max())).double().exp().cumsum(0)
    key = int(draws.seeds[request]), int(draws.positions[request]) + position
    uniform = keyed_uniform(*key, Purpose.DRAFT, int(draws.step_id))
    at, kept = (int(draws.slot_ids[request]), position), draws.kept
    kept.logits[at], kept.scales[at] = logits, scale
    kept.maxima[at], kept.masses[at] = logits.max(), cumulative[-1]
    below_all = cumulative[-1].nextafter(torch.zeros(()).double())
    target = torch.minimum(uniform * cumulative[-1], below_all)
    return int(torch.searchsorted(cumulative, target, right=True))
