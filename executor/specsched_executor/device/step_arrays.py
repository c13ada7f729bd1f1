"""What the host tells the device about a step, and what it learns of it later."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_executor.device.packed import Field, PackedArrays, PackedLayout

__all__ = ["DeviceSizes", "RequestInputs", "StepInputs", "input_layout", "output_layout"]


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """Largest step: requests, rows, draft positions (1 or more), KV blocks of one request.

    block_size: tokens of a KV block.
    """

    max_requests: int
    max_rows: int
    max_draft_tokens: int
    max_blocks: int
    block_size: int

    @property
    def max_context_tokens(self) -> int:
        """Tokens that a request's block table can hold."""
        return self.max_blocks * self.block_size


def input_layout(sizes: DeviceSizes) -> PackedLayout:
    """Fields [R] of each request, then what is long: block tables and prompt tokens.

    given_positions: where a prefill's rows start, -1 for an anchor that only the device knows.
    draft_limits: drafts it may verify. next_draft_lens: drafts to make for it at the end.
    prompt_start: index of its base rows in prompt_token_ids, -1 for an anchor. ruled: the first
    num_ruled are indexes of those whose logits are ruled. calibration: temperature (0) and
    intercept (1) of what drafts are ranked by; see DraftRanking.
    """
    requests, int32, int64 = (sizes.max_requests,), torch.int32, torch.int64
    return PackedLayout(
        {
            "budget": Field((1,), int32),
            "step_id": Field((1,), int64),
            "num_ruled": Field((1,), int32),
            "prior": Field((sizes.max_draft_tokens,), torch.float32),
            "calibration": Field((2, 2, sizes.max_draft_tokens), torch.float32),
            "slot_ids": Field(requests, int64),
            "generations": Field(requests, int64),
            "given_positions": Field(requests, int64),
            "num_base_rows": Field(requests, int32),
            "samples": Field(requests, torch.bool),
            "draft_limits": Field(requests, int32),
            "next_draft_lens": Field(requests, int32),
            "weights": Field(requests, torch.float32),
            "temperature": Field(requests, torch.float32),
            "min_p": Field(requests, torch.float32),
            "top_k": Field(requests, int64),
            "top_p": Field(requests, torch.float32),
            "draft_temperature": Field(requests, torch.float32),
            "seeds": Field(requests, int64),
            "keeps_own_sample": Field(requests, torch.bool),
            "ruled": Field(requests, int32),
            "prompt_start": Field(requests, int32),
            "block_tables": Field((*requests, sizes.max_blocks), int32),
            "prompt_token_ids": Field((sizes.max_rows,), int64),
        }
    )


def output_layout(sizes: DeviceSizes) -> PackedLayout:
    """Fields [R]: what verification and drafting made of each request of the step.

    confidence: the drafter's own, ranked: what its drafts are ranked by.
    """
    requests, k = sizes.max_requests, sizes.max_draft_tokens
    return PackedLayout(
        {
            "token_ids": Field((requests, k + 1), torch.int64),
            "num_accepted": Field((requests,), torch.int32),
            "verify_lens": Field((requests,), torch.int32),
            "faulty": Field((requests,), torch.bool),
            "confidence": Field((requests, k), torch.float32),
            "ranked": Field((requests, k), torch.float32),
        }
    )


@dataclass(frozen=True, slots=True)
class RequestInputs:
    """The fields of the first R requests, as `input_layout` names them."""

    slot_ids: torch.Tensor
    generations: torch.Tensor
    given_positions: torch.Tensor
    num_base_rows: torch.Tensor
    samples: torch.Tensor
    draft_limits: torch.Tensor
    next_draft_lens: torch.Tensor
    weights: torch.Tensor
    temperature: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    draft_temperature: torch.Tensor
    seeds: torch.Tensor
    keeps_own_sample: torch.Tensor
    ruled: torch.Tensor
    prompt_start: torch.Tensor
    block_tables: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Device memory that every step is read from; its addresses never change."""

    arrays: PackedArrays

    def requests(self, num_requests: int) -> RequestInputs:
        """Views of the first `num_requests`."""
        names = RequestInputs.__dataclass_fields__
        return RequestInputs(**{name: self.arrays[name][:num_requests] for name in names})
