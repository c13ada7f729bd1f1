"""Device code of `verify_drafts`: a few launches, of which one reads all logits.

That one leaves the largest logit and the mass of each chunk of a row (row_statistics.py); from
there a row's sample needs one chunk more. Min-p, top-k and top-p are found among the row's largest
logits (candidates.py). Then a kernel per request compares drafts with samples, or runs the accept
tests of drafts that came with a distribution, whose residual is sampled by chunks again
(residual.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton

from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.reference.verify_drafts import SamplingInputs
from specsched_kernels.triton.acceptance import judge_kernel
from specsched_kernels.triton.candidates import candidates_kernel
from specsched_kernels.triton.residual import (
    residual_kernel,
    residual_mass_kernel,
)
from specsched_kernels.triton.row_statistics import statistics_kernel
from specsched_kernels.triton.verify_rows import sample_kernel, search_kernel

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
    sampling = (inputs.temperature, inputs.min_p, inputs.top_k, inputs.top_p)
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
    judge_kernel[(num_requests,)](
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
