"""Lossless verification of drafts: committed tokens have exactly the target's distribution.

Deterministic drafts (a point mass) are accepted iff they equal what the request would have sampled
anyway: accepted with probability p(draft), else the sample is distributed as the residual. With
uniforms keyed by position the output then does not depend on how many drafts are verified.
Stochastic drafts x ~ q are accepted with probability min(1, p(x) / q(x)), else replaced by a
sample of max(p - q, 0) normalised (Leviathan et al., 2023, arXiv 2211.17192, appendix A.1): more
of them are accepted, but which token comes out then depends on which drafts are verified. Requests
that keep their own sample have every draft judged as a deterministic one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from specsched_executor.sampling.distribution import draw, target_distribution
from specsched_executor.sampling.fused_verification import can_fuse, is_uncut, verify_fused
from specsched_executor.sampling.params import SamplingTensors
from specsched_executor.sampling.uniforms import Purpose, keyed_uniforms

__all__ = ["Verification", "VerificationInputs", "verify_drafts"]


@dataclass(frozen=True, slots=True)
class VerificationInputs:
    """The rows to sample from and the drafts they judge, for R requests.

    logits: float32 [m, V], verify_len + 1 rows for each request that samples, none for others.
    logit_start_loc: int64 [R+1], first row of each request. verify_lens: int64 [R].
    output_positions: int64 [R], position in the sequence of the first token to be sampled.
    draft_token_ids: int64 [R, k]. draft_distribution: float32 [R, n, V] they were sampled from, or
    None for a deterministic drafter; n at least the largest of verify_lens. params: [R] each.
    """

    logits: torch.Tensor
    logit_start_loc: torch.Tensor
    verify_lens: torch.Tensor
    output_positions: torch.Tensor
    draft_token_ids: torch.Tensor
    params: SamplingTensors
    draft_distribution: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome for R requests.

    token_ids: int64 [R, k+1], of which the first num_accepted + 1 are committed (the accepted
    prefix and the bonus token). num_accepted: int64 [R]. faulty: bool [R], a needed row had no
    finite maximum (NaN or infinite logits); nothing of that request may be committed.
    Requests that do not sample have num_accepted 0 and meaningless tokens.
    """

    token_ids: torch.Tensor
    num_accepted: torch.Tensor
    faulty: torch.Tensor


def verify_drafts(inputs: VerificationInputs) -> Verification:
    """Judge the drafts of a ragged batch and sample the token after each accepted prefix."""
    if inputs.logits.shape[0] == 0:
        return _nobody_samples(inputs)
    if not can_fuse(inputs.logits):
        return _verify_by_torch(inputs)
    fused = Verification(
        *verify_fused(
            logits=inputs.logits,
            logit_start_loc=inputs.logit_start_loc,
            verify_lens=inputs.verify_lens,
            output_positions=inputs.output_positions,
            draft_token_ids=inputs.draft_token_ids,
            params=inputs.params,
            distribution=inputs.draft_distribution,
        )
    )
    uncut = is_uncut(inputs.params)
    if uncut.all():
        return fused
    # How a request is judged must not depend on its neighbours, not even by a rounding.
    return _choose(uncut, fused, _verify_by_torch(inputs))


def _choose(of_first: torch.Tensor, first: Verification, second: Verification) -> Verification:
    return Verification(
        torch.where(of_first[:, None], first.token_ids, second.token_ids),
        torch.where(of_first, first.num_accepted, second.num_accepted),
        torch.where(of_first, first.faulty, second.faulty),
    )


def _verify_by_torch(inputs: VerificationInputs) -> Verification:
    grid = _RowGrid.of(inputs)
    maxima, best = inputs.logits.max(dim=-1)
    drafted = inputs.draft_distribution
    if drafted is None:
        tokens, num_accepted = _judge_deterministic(inputs, grid, best)
    else:
        tokens, num_accepted = _judge_stochastic(inputs, grid, best, drafted)
    finite = torch.isfinite(maxima)[grid.rows] | ~grid.present
    needed = grid.offsets <= num_accepted[:, None]
    return Verification(tokens, num_accepted, faulty=(needed & ~finite).any(dim=1))


def _nobody_samples(inputs: VerificationInputs) -> Verification:
    num_requests, k = inputs.draft_token_ids.shape
    nothing = torch.zeros_like(inputs.verify_lens)
    tokens = nothing.new_zeros(num_requests, k + 1)
    return Verification(tokens, nothing, faulty=nothing.bool())


@dataclass(frozen=True, slots=True)
class _RowGrid:
    """Ragged rows seen as [R, k+1]: rows int64 (row 0 where absent), present bool."""

    rows: torch.Tensor
    present: torch.Tensor
    offsets: torch.Tensor
    positions: torch.Tensor
    request_of_row: torch.Tensor

    @classmethod
    def of(cls, inputs: VerificationInputs) -> _RowGrid:
        starts = inputs.logit_start_loc
        num_positions = inputs.draft_token_ids.shape[1] + 1
        offsets = torch.arange(num_positions, device=starts.device)[None, :]
        num_rows = starts.diff()
        present = offsets < num_rows[:, None]
        rows = torch.where(present, starts[:-1, None] + offsets, 0)
        request_of_row = torch.arange(len(num_rows), device=starts.device)
        request_of_row = request_of_row.repeat_interleave(num_rows)
        positions = inputs.output_positions[:, None] + offsets
        return cls(rows, present, offsets, positions, request_of_row)

    def drafts(self, inputs: VerificationInputs) -> torch.Tensor:
        """bool [R, k]: this draft is verified."""
        return self.offsets[:, :-1] < inputs.verify_lens[:, None]


@dataclass(frozen=True, slots=True)
class _Distributions:
    """Of the S requests that sample at a temperature: target [S, k+1, V], draft [S, k, V]."""

    target: torch.Tensor
    draft: torch.Tensor


def _judge_deterministic(
    inputs: VerificationInputs, grid: _RowGrid, best: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    sampled = best
    params = inputs.params.rows(grid.request_of_row)
    rows = torch.nonzero(params.temperature > 0)[:, 0]
    if rows.numel():
        positions = grid.positions[grid.present][rows]
        uniforms = keyed_uniforms(params.seeds[rows], positions, Purpose.SAMPLE)
        distribution = target_distribution(_finite(inputs.logits, rows), params.rows(rows))
        sampled = best.index_put((rows,), draw(distribution, uniforms))
    tokens = sampled[grid.rows]
    matches = (tokens[:, :-1] == inputs.draft_token_ids) & grid.drafts(inputs)
    return tokens, _prefix_length(matches)


def _judge_stochastic(
    inputs: VerificationInputs, grid: _RowGrid, best: torch.Tensor, distribution: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = best[grid.rows]
    accepted = (tokens[:, :-1] == inputs.draft_token_ids) & grid.drafts(inputs)
    own = inputs.params.keeps_own_sample
    if own.any():
        own_tokens, own_accepted = _judge_deterministic(inputs, grid, best)
        tokens = torch.where(own[:, None], own_tokens, tokens)
        positions = grid.offsets[:, :-1]
        accepted = torch.where(own[:, None], positions < own_accepted[:, None], accepted)
    draws = (inputs.params.temperature > 0) & ~own
    sampling = torch.nonzero(draws & grid.present[:, 0])[:, 0]
    if sampling.numel() == 0:
        return tokens, _prefix_length(accepted)
    drafted = distribution[sampling]
    if (missing := inputs.draft_token_ids.shape[1] - drafted.shape[1]) > 0:
        drafted = F.pad(drafted, (0, 0, 0, missing))
    pair = _Distributions(_target_grid(inputs, grid, sampling), drafted)
    accepted[sampling] = _accepted(inputs, grid, sampling, pair)
    num_accepted = _prefix_length(accepted)
    final = _final_tokens(inputs, grid, sampling, pair, num_accepted[sampling])
    tokens[:, :-1] = torch.where(accepted, inputs.draft_token_ids, tokens[:, :-1])
    tokens[sampling, num_accepted[sampling]] = final
    return tokens, num_accepted


def _target_grid(
    inputs: VerificationInputs, grid: _RowGrid, sampling: torch.Tensor
) -> torch.Tensor:
    """float32 [S, k+1, V]: the target's distribution in every row of the sampling requests."""
    present = grid.present[sampling]
    rows = grid.rows[sampling][present]
    params = inputs.params.rows(sampling.repeat_interleave(present.sum(dim=1)))
    vocab_size = inputs.logits.shape[1]
    target = torch.zeros(*present.shape, vocab_size, device=inputs.logits.device)
    target[present] = target_distribution(_finite(inputs.logits, rows), params)
    return target


def _accepted(
    inputs: VerificationInputs, grid: _RowGrid, sampling: torch.Tensor, pair: _Distributions
) -> torch.Tensor:
    drafted = grid.drafts(inputs)[sampling]
    token_ids = torch.where(drafted, inputs.draft_token_ids[sampling], 0)[:, :, None]
    p = pair.target[:, :-1].gather(2, token_ids)[:, :, 0]
    q = pair.draft.gather(2, token_ids)[:, :, 0]
    uniforms = keyed_uniforms(
        inputs.params.seeds[sampling, None], grid.positions[sampling, :-1], Purpose.ACCEPT
    )
    return (uniforms * q < p) & drafted


def _final_tokens(
    inputs: VerificationInputs,
    grid: _RowGrid,
    sampling: torch.Tensor,
    pair: _Distributions,
    num_accepted: torch.Tensor,
) -> torch.Tensor:
    """int64 [S]: the bonus token where all drafts were accepted, else a residual sample."""
    requests = torch.arange(len(sampling), device=sampling.device)
    weights = pair.target[requests, num_accepted]
    rejected = num_accepted < inputs.verify_lens[sampling]
    drafted = pair.draft[requests, num_accepted.clamp(max=pair.draft.shape[1] - 1)]
    residual = (weights - drafted).clamp(min=0)
    # p equal to q everywhere is never rejected but for rounding; then p itself is the residual.
    usable = rejected & (residual.sum(dim=1) > 0)
    weights = torch.where(usable[:, None], residual, weights)
    seeds, positions = inputs.params.seeds[sampling], grid.positions[sampling, num_accepted]
    uniforms = torch.where(
        rejected,
        keyed_uniforms(seeds, positions, Purpose.RESIDUAL),
        keyed_uniforms(seeds, positions, Purpose.SAMPLE),
    )
    return draw(weights, uniforms)


def _finite(logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Those rows; a faulty one is blanked, its request is failed and it must not spoil the math."""
    chosen = logits[rows]
    faulty = ~torch.isfinite(chosen.amax(dim=-1, keepdim=True))
    return chosen.masked_fill(faulty, 0.0)


def _prefix_length(accepted: torch.Tensor) -> torch.Tensor:
    return accepted.long().cumprod(dim=1).sum(dim=1)
