"""From logits to the distribution a request samples from, and a draw from it."""

from __future__ import annotations

import torch
from specsched_kernels.temperature import SMALLEST_TEMPERATURE

from specsched_executor.sampling.params import SamplingTensors

__all__ = ["draw", "target_distribution"]

_NUM_CANDIDATES = 256
"""Largest probabilities looked at before a whole row is sorted for top-p."""


def target_distribution(logits: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """float32 [m, V], rows summing to 1: softmax(logits / temperature) cut to top-k, then top-p.

    logits: float32 [m, V]; params: [m] each, every temperature above 0. Top-k keeps the k largest
    logits, top-p the shortest list of the most probable tokens whose mass reaches p; whatever ties
    with the last one kept is kept too, so that a row's outcome depends on nothing but the row.
    """
    scaled = logits / params.temperature.clamp(min=SMALLEST_TEMPERATURE)[:, None]
    scaled = _cut_top_k(scaled, params.top_k)
    probabilities = torch.softmax(scaled, dim=-1)
    return _cut_top_p(probabilities, params.top_p)


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """int64 [m]: the token whose share of the row's mass covers the uniform (inverse CDF).

    weights: float32 [m, V], not negative, of any positive sum; uniforms: float64 [m] in [0, 1).
    Sums run in float64, in order of token id. A token without weight is never drawn.
    """
    cumulative = torch.cumsum(weights, dim=-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # u * total may round up to total, which no token covers.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def _cut_top_k(scaled: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    rows = torch.nonzero((top_k > 0) & (top_k < scaled.shape[1]))[:, 0]
    if rows.numel() == 0:
        return scaled
    limits = top_k[rows]
    largest = torch.topk(scaled[rows], int(limits.max()), dim=-1).values
    smallest_kept = largest.gather(1, limits[:, None] - 1)
    scaled[rows] = scaled[rows].masked_fill(scaled[rows] < smallest_kept, -torch.inf)
    return scaled


def _cut_top_p(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    rows = torch.nonzero(top_p < 1)[:, 0]
    if rows.numel() == 0:
        return probabilities
    cut = probabilities[rows]
    cut = cut.masked_fill(cut < _smallest_kept(cut, top_p[rows]), 0.0)
    probabilities[rows] = cut / cut.sum(dim=-1, keepdim=True)
    return probabilities


def _smallest_kept(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """float32 [m, 1]: probability of the last token on the shortest list that reaches p."""
    num_candidates = min(_NUM_CANDIDATES, probabilities.shape[1])
    largest = torch.topk(probabilities, num_candidates, dim=-1).values
    reached = torch.cumsum(largest, dim=-1, dtype=torch.float64) >= top_p[:, None]
    last = torch.argmax(reached.to(torch.int8), dim=-1, keepdim=True)
    smallest = largest.gather(1, last)
    # The few flat rows whose mass lies deeper are sorted whole.
    deep = torch.nonzero(~reached[:, -1])[:, 0]
    if deep.numel():
        ordered = torch.sort(probabilities[deep], dim=-1, descending=True).values
        mass_before = torch.cumsum(ordered, dim=-1, dtype=torch.float64) - ordered
        num_kept = (mass_before < top_p[deep, None]).sum(dim=-1, keepdim=True)
        smallest[deep] = ordered.gather(1, num_kept - 1)
    return smallest
