"""Device code of `verify_drafts`: a few launches, of which one reads all logits.

That one leaves the largest logit and the mass of each chunk of a row (row_statistics.py); from
there a row's sample needs one chunk more. Top-k and top-p are found among the row's largest logits
(candidates.py). Then a kernel per request compares drafts with samples, or runs the accept tests
of drafts that came with a distribution, whose residual is sampled by chunks again (residual.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.reference.verify_drafts import SamplingInputs
from specsched_kernels.triton.candidates import candidates_kernel
from specsched_kernels.triton.residual import (
    goes_through_test,
    residual_kernel,
    residual_mass_kernel,
)
from specsched_kernels.triton.row_statistics import statistics_kernel
from specsched_kernels.triton.uniforms import ACCEPT, keyed_uniform
from specsched_kernels.triton.verify_rows import sample_kernel, search_kernel
from specsched_kernels.triton.vocabulary import log2_scale, order_key

if TYPE_CHECKING:
    from specsched_kernels.verify_drafts import VerifyOutcome

__all__ = ["MAX_CANDIDATES", "verify_drafts"]

MAX_CANDIDATES = 4096
"""Largest logits of a row among which top-k and top-p are looked for at once."""
_CHUNK_VOCAB = 2048
_BLOCK_VOCAB = 2048
_BLOCK_SEARCH = 1024
_BLOCK_REQUESTS = (16, 256, 1024)
_MAX_PROGRAMS = 528
_LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Scratch of m rows in c chunks: what the kernels leave for each other."""

    chunks: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    tokens: torch.Tensor
    maxima: torch.Tensor
    cuts: torch.Tensor
    masses: torch.Tensor
    num_candidates: torch.Tensor
    candidates: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def empty(
        cls, num_rows: int, num_chunks: int, max_candidates: int, device: torch.device
    ) -> _Rows:
        def floats(*shape: int) -> torch.Tensor:
            return torch.empty((num_rows, *shape), device=device)

        def integers(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty((num_rows, *shape), dtype=dtype, device=device)

        return cls(
            chunks=(floats(num_chunks), integers(num_chunks), floats(num_chunks)),
            tokens=integers(dtype=torch.int64),
            maxima=floats(),
            cuts=integers(),
            masses=torch.empty(num_rows, dtype=torch.float64, device=device),
            num_candidates=integers(),
            candidates=(floats(max_candidates), integers(max_candidates)),
        )

    @property
    def results(self) -> tuple[torch.Tensor, ...]:
        return self.tokens, self.maxima, self.cuts, self.masses


def verify_drafts(
    inputs: SamplingInputs, out: VerifyOutcome, max_candidates: int = MAX_CANDIDATES
) -> None:
    """Fill `out`, see `specsched_kernels.verify_drafts`."""
    num_rows, vocab_size = inputs.logits.shape
    if inputs.verify_lens.shape[0] == 0:
        return
    chunk_vocab = min(_CHUNK_VOCAB, triton.next_power_of_2(vocab_size))
    num_chunks = triton.cdiv(vocab_size, chunk_vocab)
    max_candidates = min(max_candidates, triton.next_power_of_2(vocab_size))
    rows = _Rows.empty(num_rows, num_chunks, max_candidates, inputs.logits.device)
    _sample_rows(inputs, rows, chunk_vocab, max_candidates)
    _judge(inputs, rows, out)
    if inputs.draft_distribution is not None:
        _sample_residuals(inputs, inputs.draft_distribution, rows, out, chunk_vocab)


def _sample_rows(
    inputs: SamplingInputs, rows: _Rows, chunk_vocab: int, max_candidates: int
) -> None:
    num_rows, vocab_size = inputs.logits.shape
    num_requests, num_chunks = inputs.verify_lens.shape[0], rows.chunks[0].shape[1]
    block_requests = next(
        (size for size in _BLOCK_REQUESTS if size >= num_requests), max(_BLOCK_REQUESTS)
    )
    block_vocab = max(min(_BLOCK_VOCAB, triton.next_power_of_2(vocab_size)), 128)
    places = (inputs.logit_start_loc, inputs.output_positions, inputs.verify_lens)
    sampling = (inputs.temperature, inputs.top_k, inputs.top_p)
    parameters = (*sampling, inputs.seeds, inputs.keeps_own_sample)
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "num_requests": num_requests,
        "BLOCK_REQUESTS": block_requests,
        "num_warps": 8,
    }
    cut: dict[str, Any] = {
        "MAX_CANDIDATES": max_candidates,
        "ONLY_LAST": inputs.draft_distribution is not None,
    }
    statistics_kernel[(num_rows * num_chunks,)](
        inputs.logits,
        inputs.logit_start_loc,
        inputs.temperature,
        *rows.chunks,
        num_chunks=num_chunks,
        BLOCK_VOCAB=chunk_vocab,
        **(common | {"num_warps": 4}),
    )
    sample_kernel[(num_rows,)](
        inputs.logits,
        *places,
        *parameters,
        *rows.chunks,
        *rows.results,
        rows.num_candidates,
        *rows.candidates,
        num_chunks=num_chunks,
        NUM_CHUNKS=triton.next_power_of_2(num_chunks),
        CHUNK_VOCAB=chunk_vocab,
        BLOCK_VOCAB=block_vocab,
        **common,
        **cut,
    )
    few = (min(num_rows, _MAX_PROGRAMS),)
    candidates_kernel[few](
        *places, *parameters, *rows.results, rows.num_candidates, *rows.candidates, **common, **cut
    )
    search_kernel[few](
        inputs.logits,
        *places,
        *parameters,
        *rows.results,
        rows.num_candidates,
        BLOCK_VOCAB=min(_BLOCK_SEARCH, block_vocab),
        **(common | {"num_warps": 4}),
        **cut,
    )


def _judge(inputs: SamplingInputs, rows: _Rows, out: VerifyOutcome) -> None:
    drafted = inputs.draft_distribution
    num_requests, num_positions = inputs.verify_lens.shape[0], inputs.draft_token_ids.shape[1]
    _judge_kernel[(num_requests,)](
        inputs.logits,
        inputs.logit_start_loc,
        inputs.output_positions,
        inputs.temperature,
        inputs.seeds,
        inputs.keeps_own_sample,
        inputs.slot_ids,
        inputs.draft_token_ids,
        *((None,) * 4 if drafted is None else _tensors_of(drafted)),
        *rows.results,
        out.token_ids,
        out.num_accepted,
        out.faulty,
        inputs.logits.shape[1],
        NUM_POSITIONS=num_positions,
        BLOCK_POSITIONS=triton.next_power_of_2(num_positions + 1),
        num_warps=1,
    )


def _sample_residuals(
    inputs: SamplingInputs,
    drafted: DraftDistribution,
    rows: _Rows,
    out: VerifyOutcome,
    chunk_vocab: int,
) -> None:
    num_requests, num_positions = inputs.verify_lens.shape[0], inputs.draft_token_ids.shape[1]
    vocab_size, num_chunks = inputs.logits.shape[1], rows.chunks[0].shape[1]
    shape, device = (2, num_requests, num_chunks), inputs.logits.device
    residuals, targets = torch.empty(shape, dtype=torch.float64, device=device)
    row_state = (inputs.slot_ids, *rows.results[1:], *_tensors_of(drafted))
    outcome = (out.num_accepted, out.faulty, residuals, targets)
    sizes = {"NUM_POSITIONS": num_positions, "CHUNK_VOCAB": chunk_vocab}
    residual_mass_kernel[(num_requests * num_chunks,)](
        inputs.logits,
        inputs.logit_start_loc,
        inputs.temperature,
        inputs.keeps_own_sample,
        *row_state,
        *outcome,
        vocab_size,
        num_chunks,
        **sizes,
        num_warps=4,
    )
    residual_kernel[(num_requests,)](
        inputs.logits,
        inputs.logit_start_loc,
        inputs.output_positions,
        inputs.temperature,
        inputs.seeds,
        inputs.keeps_own_sample,
        *row_state,
        *outcome,
        out.token_ids,
        vocab_size,
        num_chunks,
        NUM_CHUNKS=triton.next_power_of_2(num_chunks),
        **sizes,
        num_warps=4,
    )


def _tensors_of(drafted: DraftDistribution) -> tuple[torch.Tensor, ...]:
    return drafted.logits, drafted.scales, drafted.maxima, drafted.masses


@triton.jit
def _judge_kernel(
    logit_ptr,
    start_loc_ptr,
    position_ptr,
    temperature_ptr,
    seed_ptr,
    own_ptr,
    slot_ptr,
    draft_ptr,
    drafted_ptr,
    drafted_scale_ptr,
    drafted_maximum_ptr,
    drafted_mass_ptr,
    token_ptr,
    maximum_ptr,
    cut_ptr,
    mass_ptr,
    out_token_ptr,
    num_accepted_ptr,
    faulty_ptr,
    vocab_size,
    NUM_POSITIONS: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    start = tl.load(start_loc_ptr + request)
    num_rows = tl.load(start_loc_ptr + request + 1) - start
    slot = request
    if slot_ptr is not None:
        slot = tl.maximum(tl.load(slot_ptr + request), 0)
    offset = tl.arange(0, BLOCK_POSITIONS)
    is_row = offset < num_rows
    is_draft = offset < num_rows - 1
    token = tl.load(token_ptr + start + offset, mask=is_row, other=0)
    draft = tl.load(draft_ptr + slot * NUM_POSITIONS + offset, mask=is_draft, other=0)
    maximum = tl.load(maximum_ptr + start + offset, mask=is_row, other=0.0)
    is_faulty = (tl.abs(maximum) < float("inf")) == 0
    accepted = is_draft & (token == draft)
    temperature = tl.load(temperature_ptr + request)
    if drafted_ptr is not None:
        if goes_through_test(temperature_ptr, own_ptr, request):
            is_sound = is_draft & (is_faulty == 0)
            row = (start + offset).to(tl.int64)
            logit = tl.load(logit_ptr + row * vocab_size + draft, mask=is_sound, other=0.0)
            cut = tl.load(cut_ptr + row, mask=is_sound, other=0)
            mass = tl.load(mass_ptr + row, mask=is_sound, other=1.0)
            weight = tl.exp2((logit - tl.where(is_sound, maximum, 0.0)) * log2_scale(temperature))
            p = tl.where(order_key(logit) >= cut, weight.to(tl.float64) / mass, 0.0)
            at = slot * NUM_POSITIONS + offset
            drafted = tl.load(drafted_ptr + at * vocab_size + draft, mask=is_draft, other=0.0)
            depth = drafted - tl.load(drafted_maximum_ptr + at, mask=is_draft, other=0.0)
            scale = tl.load(drafted_scale_ptr + at, mask=is_draft, other=1.0) * _LOG2_E
            q = tl.exp2(depth * scale).to(tl.float64)
            q /= tl.load(drafted_mass_ptr + at, mask=is_draft, other=1.0)
            position = tl.load(position_ptr + request) + offset
            uniform = keyed_uniform(tl.load(seed_ptr + request), position, ACCEPT)
            accepted = is_draft & (uniform * q < p)
    accepted = accepted & (is_faulty == 0)
    num_accepted = tl.min(tl.where(accepted, BLOCK_POSITIONS, offset), axis=0)
    num_accepted = tl.maximum(tl.minimum(num_accepted, num_rows - 1), 0)
    is_needed_fault = is_faulty & (offset <= num_accepted) & is_row
    token = tl.where(offset < num_accepted, draft, token)
    token = tl.where((offset <= num_accepted) & is_row, token, 0)
    out_ptr = out_token_ptr + request * (NUM_POSITIONS + 1) + offset
    tl.store(out_ptr, token, mask=offset <= NUM_POSITIONS)
    tl.store(num_accepted_ptr + request, num_accepted)
    tl.store(faulty_ptr + request, tl.max(is_needed_fault.to(tl.int32), axis=0) != 0)
