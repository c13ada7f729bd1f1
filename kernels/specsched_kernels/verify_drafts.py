"""Lossless verification on the device: judge the drafts of a step and sample what follows them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import verify_drafts as reference

__all__ = ["SamplingInputs", "VerifyOutcome", "verify_drafts"]

SamplingInputs = reference.SamplingInputs


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """What R requests commit.

    token_ids: int64 [R, k+1], of which the first num_accepted + 1 are committed: the accepted
    prefix and the token sampled after it. num_accepted: int32 [R]. faulty: bool [R], a row that was
    needed had no finite maximum; nothing of that request may be committed.
    """

    token_ids: torch.Tensor
    num_accepted: torch.Tensor
    faulty: torch.Tensor

    @classmethod
    def empty(
        cls, num_requests: int, max_draft_tokens: int, device: torch.device | str = "cpu"
    ) -> VerifyOutcome:
        """Uninitialised outputs, for `out=`."""
        shape = (num_requests, max_draft_tokens + 1)
        return cls(
            token_ids=torch.empty(shape, dtype=torch.int64, device=device),
            num_accepted=torch.empty(num_requests, dtype=torch.int32, device=device),
            faulty=torch.empty(num_requests, dtype=torch.bool, device=device),
        )


def verify_drafts(inputs: SamplingInputs, *, out: VerifyOutcome | None = None) -> VerifyOutcome:
    """Accept a prefix of each draft and sample one token more, as the target would have.

    A deterministic draft (no `draft_distribution`) is accepted iff it equals the request's own
    sample at that position: inverse CDF, in order of token id, of softmax(logits / temperature) cut
    by min-p, then top-k, then top-p, at the uniform keyed by (seed, position). A draft x ~ q is
    accepted with probability min(1, p(x) / q(x)), else replaced by a sample of max(p - q, 0)
    (Leviathan et al., 2023, arXiv 2211.17192), unless its request keeps its own sample. Temperature
    0 is greedy: accepted iff it is the first largest logit.
    Nothing is read back and shapes alone fix the launches, so a graph can capture it with `out`.

    Raises ValueError for a tensor of another shape or dtype.
    """
    _check(inputs)
    num_requests, max_draft_tokens = inputs.verify_lens.shape[0], inputs.draft_token_ids.shape[1]
    device = inputs.logits.device
    if out is None:
        out = VerifyOutcome.empty(num_requests, max_draft_tokens, device)
    shape = (num_requests, max_draft_tokens + 1)
    check_tensor("out.token_ids", out.token_ids, shape, torch.int64, device)
    check_tensor("out.num_accepted", out.num_accepted, (num_requests,), torch.int32, device)
    check_tensor("out.faulty", out.faulty, (num_requests,), torch.bool, device)
    if device.type == "cpu":
        reference.verify_drafts(inputs, out)
    else:
        from specsched_kernels.triton.verify_drafts import verify_drafts as launch

        launch(inputs, out)
    return out


def _check(inputs: SamplingInputs) -> None:
    device = inputs.logits.device
    num_requests, num_tables = inputs.verify_lens.shape[0], inputs.draft_token_ids.shape[0]
    rows, vocab_size = inputs.logits.shape
    shape, int32, int64 = (num_requests,), torch.int32, torch.int64
    check_tensor("logits", inputs.logits, (rows, vocab_size), torch.float32, device)
    check_tensor("logit_start_loc", inputs.logit_start_loc, (num_requests + 1,), int32, device)
    check_tensor("verify_lens", inputs.verify_lens, shape, int32, device)
    check_tensor("output_positions", inputs.output_positions, shape, int64, device)
    if inputs.slot_ids is not None:
        check_tensor("slot_ids", inputs.slot_ids, shape, int64, device)
    elif num_tables != num_requests:
        raise ValueError(f"draft_token_ids has {num_tables} rows; accepted: {num_requests}")
    drafts = tuple(inputs.draft_token_ids.shape)
    check_tensor("draft_token_ids", inputs.draft_token_ids, drafts, int64, device)
    check_tensor("temperature", inputs.temperature, shape, torch.float32, device)
    check_tensor("top_k", inputs.top_k, shape, int64, device)
    check_tensor("top_p", inputs.top_p, shape, torch.float32, device)
    check_tensor("seeds", inputs.seeds, shape, int64, device)
    if inputs.min_p is not None:
        check_tensor("min_p", inputs.min_p, shape, torch.float32, device)
    if inputs.keeps_own_sample is not None:
        check_tensor("keeps_own_sample", inputs.keeps_own_sample, shape, torch.bool, device)
    if inputs.draft_distribution is not None:
        inputs.draft_distribution.check((*drafts, vocab_size), device)
