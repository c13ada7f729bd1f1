"""The indexer's logits by DeepGEMM, where it is installed and works."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import torch

from specsched_kernels.indexer_logits import INDEX_DIM, KEY_BLOCK_SIZE, KEY_BYTES
from specsched_kernels.reference.indexer_logits import indexer_logits as exact_logits

__all__ = ["DeepGemm", "DeepGemmUnavailable", "load_deep_gemm"]

_MODULES: Final = ("deep_gemm", "vllm.third_party.deep_gemm")
_FUNCTIONS: Final = ("get_num_sms", "get_paged_mqa_logits_metadata", "fp8_fp4_paged_mqa_logits")
_TRIAL_HEADS: Final = 64
_TRIAL_TOLERANCE: Final = 1e-2
"""Sums of e4m3 products keep about 14 bits on Hopper; a wrong layout is off by far more."""


@dataclass(frozen=True, slots=True)
class DeepGemmUnavailable:
    """Why there is no DeepGEMM, in a sentence for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class DeepGemm:
    """Paged indexer logits of a DeepGEMM module; both calls can be captured, none waits.

    Rows come as m requests of next_n rows each (1 or 2 on Hopper), or with `request_ids` as m rows
    of any requests, those of a request side by side: the varlen form, which Blackwell has and
    Hopper has not. `has_varlen`: whether it worked when it was tried.
    """

    module: Any
    has_varlen: bool = False

    def schedule(
        self, context_lens: torch.Tensor, request_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """How the work is shared out over the processors, int32 [num_sms + 1, 2].

        context_lens: int32 [m, next_n]. request_ids: int32 [m], next_n is 1 then.
        """
        varlen = {} if request_ids is None else {"indices": request_ids}
        schedule: torch.Tensor = self.module.get_paged_mqa_logits_metadata(
            context_lens, KEY_BLOCK_SIZE, self.module.get_num_sms(), **varlen
        )
        return schedule

    def paged_logits(  # noqa: PLR0917 -- the order of the call that it makes
        self,
        query: torch.Tensor,
        weights: torch.Tensor,
        key_cache: torch.Tensor,
        context_lens: torch.Tensor,
        block_tables: torch.Tensor,
        schedule: torch.Tensor,
        *,
        max_context_tokens: int,
        request_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """What `specsched_kernels.indexer_logits` gives, float32 [m * next_n, max_context_tokens].

        query: float8_e4m3fn [m, next_n, H, 128], H 32 or 64. weights: float32 [m * next_n, H].
        key_cache: uint8 [num_blocks, 64, 132]. context_lens: int32 [m, next_n]. block_tables: int32
        [m, max_blocks], so one per row where next_n is 1. What lies past a row's context length has
        no meaning. The rows of the result are a view: their stride is more than their length.
        """
        varlen = {} if request_ids is None else {"indices": request_ids}
        logits: torch.Tensor = self.module.fp8_fp4_paged_mqa_logits(
            (query, None),
            key_cache.unsqueeze(2),
            weights,
            context_lens,
            block_tables,
            schedule,
            max_context_tokens,
            **varlen,
        )
        return logits


@functools.cache
def load_deep_gemm() -> DeepGemm | DeepGemmUnavailable:
    """DeepGEMM, or vLLM's copy of it, once its results were compared with the reference.

    Tried on the current CUDA device, once per process: the first call compiles kernels, which takes
    seconds. Raises nothing.
    """
    if not torch.cuda.is_available():
        return DeepGemmUnavailable("there is no CUDA device")
    reasons = []
    for name in _MODULES:
        try:
            return _tried(importlib.import_module(name), torch.device("cuda"))
        except Exception as error:  # noqa: BLE001 -- whatever a native extension raises
            reasons.append(f"{name}: {_first_line(error)}")
    return DeepGemmUnavailable("; ".join(reasons))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _tried(module: ModuleType, device: torch.device) -> DeepGemm:
    """Raises where the module lacks a function, or its logits are not those of the reference."""
    missing = [name for name in _FUNCTIONS if not hasattr(module, name)]
    if missing:
        raise RuntimeError(f"has no {', '.join(missing)}")
    deep_gemm = DeepGemm(module)
    # Steps that no scheduler cuts take this form wherever the other one works, too.
    if failure := _failure(deep_gemm, device, varlen=False):
        raise failure
    return DeepGemm(module, has_varlen=_failure(deep_gemm, device, varlen=True) is None)


def _failure(deep_gemm: DeepGemm, device: torch.device, *, varlen: bool) -> Exception | None:
    try:
        error = _trial_error(deep_gemm, device, varlen=varlen)
    except Exception as failure:  # noqa: BLE001 -- whatever a native extension raises
        return failure
    if error <= _TRIAL_TOLERANCE:
        return None
    return RuntimeError(f"its logits are off by {error:.2g} of their size")


def _trial_error(deep_gemm: DeepGemm, device: torch.device, *, varlen: bool) -> float:
    """Relative error over three rows, one of them padding, of contexts in blocks out of order."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn((4, KEY_BLOCK_SIZE * INDEX_DIM), generator=generator)
    scales = torch.rand((4, KEY_BLOCK_SIZE), generator=generator) + 0.5
    packed = [values.to(torch.float8_e4m3fn).view(torch.uint8), scales.view(torch.uint8)]
    key_cache = torch.cat(packed, dim=1).view(4, KEY_BLOCK_SIZE, KEY_BYTES)
    query = torch.randn((3, _TRIAL_HEADS, INDEX_DIM), generator=generator)
    query = query.to(torch.float8_e4m3fn)
    weights = torch.randn((3, _TRIAL_HEADS), generator=generator)
    block_tables = torch.tensor([[2, 1, 3], [2, 1, 3], [0, 0, 0]], dtype=torch.int32)
    context_lens = torch.tensor([130, 131, 0], dtype=torch.int32)
    request_ids = torch.tensor([0, 0, 2], dtype=torch.int32)
    exact = torch.zeros((3, 192))
    exact_logits(query, weights, key_cache, block_tables, request_ids, context_lens, exact)
    lens = context_lens.to(device).unsqueeze(1)
    ids = request_ids.to(device) if varlen else None
    logits = deep_gemm.paged_logits(
        query.to(device).unsqueeze(1),
        weights.to(device),
        key_cache.to(device),
        lens,
        block_tables.to(device),
        deep_gemm.schedule(lens, ids),
        max_context_tokens=192,
        request_ids=ids,
    )
    is_context = torch.arange(192) < context_lens[:, None]
    difference = logits.cpu()[is_context] - exact[is_context]
    return float(difference.norm() / exact[is_context].norm())
