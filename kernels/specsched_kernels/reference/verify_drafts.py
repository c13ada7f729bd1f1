"""Lossless verification in plain torch, one request and row at a time, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.reference.uniforms import Purpose, keyed_uniform
from specsched_kernels.temperature import SMALLEST_TEMPERATURE

if TYPE_CHECKING:
    from specsched_kernels.verify_drafts import VerifyOutcome

__all__ = ["SamplingInputs", "verify_drafts"]


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """Logits of a step, the drafts they judge and how each request samples.

    logits: float32 [m, V], verify_len + 1 rows for each request that samples, none for others; rows
    past logit_start_loc[R] are padding. logit_start_loc: int32 [R+1]. verify_lens: int32 [R].
    output_positions: int64 [R], position of the first token to be sampled. draft_token_ids: int64
    [R, k]. temperature: float32 [R], 0 is greedy. top_k: int64 [R], 0 for no limit. top_p: float32
    [R] in (0, 1]. seeds: int64 [R]. draft_distribution: what drafts were sampled from, [R, k, V],
    or None for a deterministic drafter. With slot_ids, int64 [R], drafts and distribution are
    tables by slot; -1 is padding, without logits. keeps_own_sample: bool [R], the drafts of a
    request count as deterministic ones although they have a distribution; None: of no request.
    min_p: float32 [R] in [0, 1], tokens below this share of the largest probability are left out
    before top_k and top_p; None: none.
    """

    logits: torch.Tensor
    logit_start_loc: torch.Tensor
    verify_lens: torch.Tensor
    output_positions: torch.Tensor
    draft_token_ids: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    seeds: torch.Tensor
    draft_distribution: DraftDistribution | None = None
    slot_ids: torch.Tensor | None = None
    keeps_own_sample: torch.Tensor | None = None
    min_p: torch.Tensor | None = None


def verify_drafts(inputs: SamplingInputs, out: VerifyOutcome) -> None:
    """Fill `out`, see `specsched_kernels.verify_drafts`."""
    out.token_ids.zero_()
    out.num_accepted.zero_()
    out.faulty.zero_()
    starts = inputs.logit_start_loc.tolist()
    for request in range(len(starts) - 1):
        if starts[request] < starts[request + 1]:
            _verify_request(inputs, out, request, starts[request])


def _verify_request(inputs: SamplingInputs, out: VerifyOutcome, request: int, start: int) -> None:
    verify_len = int(inputs.verify_lens[request])
    slot = request if inputs.slot_ids is None else int(inputs.slot_ids[request])
    for offset in range(verify_len + 1):
        logits = inputs.logits[start + offset]
        if not torch.isfinite(logits.max()):
            out.faulty[request] = True
            return
        draft = int(inputs.draft_token_ids[slot, offset]) if offset < verify_len else None
        token = _judge(inputs, request, offset, logits, draft)
        out.token_ids[request, offset] = token
        out.num_accepted[request] = offset
        if token != draft:
            return


def _judge(
    inputs: SamplingInputs, request: int, offset: int, logits: torch.Tensor, draft: int | None
) -> int:
    """Token that follows: the draft itself where it is accepted."""
    if inputs.temperature[request] <= 0:
        return int(logits.argmax())
    target = target_distribution(inputs, request, logits)
    seed = int(inputs.seeds[request])
    position = int(inputs.output_positions[request]) + offset
    own = inputs.keeps_own_sample is not None and bool(inputs.keeps_own_sample[request])
    if draft is None or own or inputs.draft_distribution is None:
        return _draw(target, keyed_uniform(seed, position, Purpose.SAMPLE))
    slot = request if inputs.slot_ids is None else int(inputs.slot_ids[request])
    drafted = inputs.draft_distribution.probabilities(slot, offset)
    if keyed_uniform(seed, position, Purpose.ACCEPT) * drafted[draft] < target[draft]:
        return draft
    residual = (target - drafted).clamp(min=0)
    # p equal to q everywhere is never rejected but for rounding; then p itself is the residual.
    weights = residual if residual.sum() > 0 else target
    return _draw(weights, keyed_uniform(seed, position, Purpose.RESIDUAL))


def target_distribution(inputs: SamplingInputs, request: int, logits: torch.Tensor) -> torch.Tensor:
    """float64 [V]; whatever ties with the last token kept by top-k or top-p is kept too."""
    temperature = inputs.temperature[request]
    min_p = 0.0 if inputs.min_p is None else float(inputs.min_p[request])
    if min_p > 0:
        lowest = logits.max() + temperature * math.log(min_p)
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    scaled = logits / temperature.clamp(min=SMALLEST_TEMPERATURE)
    top_k, top_p = int(inputs.top_k[request]), float(inputs.top_p[request])
    if 0 < top_k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[-1], -torch.inf)
    probabilities = scaled.double().softmax(-1)
    if top_p < 1:
        ordered, index = probabilities.sort(descending=True)
        last = min(int((ordered.cumsum(0) < top_p).sum()), len(ordered) - 1)
        probabilities = probabilities.masked_fill(scaled < scaled[index[last]], 0.0)
    return probabilities / probabilities.sum()


def _draw(weights: torch.Tensor, uniform: float) -> int:
    """First token whose cumulative weight exceeds the uniform's share of the sum."""
    cumulative = weights.cumsum(0)
    target = torch.minimum(
        uniform * cumulative[-1], cumulative[-1].nextafter(torch.zeros(()).double())
    )
    return int(torch.searchsorted(cumulative, target, right=True))
