"""The calls that DeepGEMM gets, and what is made of a module that is not there or not right."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specsched_kernels import deep_gemm
from specsched_kernels.deep_gemm import DeepGemm, DeepGemmUnavailable, load_deep_gemm
from specsched_kernels.indexer_logits import INDEX_DIM, indexer_logits
from specsched_kernels.reference.indexer_logits import indexer_logits as exact_logits

from tests.kernels._mla_cases import key_cache, pages

CPU = torch.device("cpu")


class Module:
    """DeepGEMM as the two calls have it, computed by the reference; Hopper's unless has_varlen.

    factor, varlen_factor: how far the results of a form are off.
    """

    def __init__(
        self, *, has_varlen: bool = False, factor: float = 1.0, varlen_factor: float = 1.0
    ) -> None:
        self.has_varlen = has_varlen
        self.factor = factor
        self.varlen_factor = varlen_factor
        self.calls: list[tuple[Any, ...]] = []

    def get_num_sms(self) -> int:
        return 132

    def get_paged_mqa_logits_metadata(
        self, context_lens: torch.Tensor, block_kv: int, num_sms: int, indices: Any = None
    ) -> torch.Tensor:
        self.calls.append((context_lens, block_kv, num_sms, indices))
        if indices is not None and not self.has_varlen:
            raise RuntimeError("Assertion error: arch_major == 10\nmore of it")
        return torch.zeros((num_sms + 1, 2), dtype=torch.int32)

    def fp8_fp4_paged_mqa_logits(
        self,
        q: tuple[torch.Tensor, None],
        kv_cache: torch.Tensor,
        weights: torch.Tensor,
        context_lens: torch.Tensor,
        block_table: torch.Tensor,
        schedule_meta: torch.Tensor,
        max_context_len: int,
        indices: Any = None,
    ) -> torch.Tensor:
        self.calls.append((q, kv_cache, weights, context_lens, block_table, schedule_meta))
        self.calls.append((max_context_len, indices))
        rows = context_lens.numel()
        out = torch.full((rows, max_context_len), 1e30)
        tables = block_table.repeat_interleave(context_lens.shape[1], dim=0)
        each = torch.arange(rows, dtype=torch.int32)
        flat = (q[0].flatten(0, 1), weights, kv_cache.squeeze(2), tables, each)
        exact_logits(*flat, context_lens.flatten(), out)
        return out * (self.factor if indices is None else self.varlen_factor)


def test_arguments_of_the_varlen_form() -> None:
    """What Blackwell gets: rows of one token, with the request of each and its block table."""
    module = Module(has_varlen=True)
    lens = torch.tensor([[3], [4], [1]], dtype=torch.int32)
    ids = torch.tensor([0, 0, 1], dtype=torch.int32)
    gemm = DeepGemm(module)
    schedule = gemm.schedule(lens, ids)
    assert module.calls == [(lens, 64, 132, ids)]
    query = torch.zeros(3, 1, 64, 128).to(torch.float8_e4m3fn)
    weights, cache = torch.zeros(3, 64), torch.zeros((2, 64, 132), dtype=torch.uint8)
    tables = torch.zeros((3, 1), dtype=torch.int32)
    logits = gemm.paged_logits(
        query, weights, cache, lens, tables, schedule, max_context_tokens=64, request_ids=ids
    )
    (q, kv, *rest), last = module.calls[1:]
    assert q == (query, None)
    assert kv.shape == (2, 64, 1, 132)
    assert rest == [weights, lens, tables, schedule]
    assert last == (64, ids)
    assert logits.shape == (3, 64)


def test_arguments_of_the_uniform_form() -> None:
    module = Module()
    lens = torch.tensor([[3, 4]], dtype=torch.int32)
    gemm = DeepGemm(module)
    schedule = gemm.schedule(lens)
    query = torch.zeros(1, 2, 64, 128).to(torch.float8_e4m3fn)
    cache = torch.zeros((2, 64, 132), dtype=torch.uint8)
    tables = torch.zeros((1, 1), dtype=torch.int32)
    logits = gemm.paged_logits(
        query, torch.zeros(2, 64), cache, lens, tables, schedule, max_context_tokens=64
    )
    assert module.calls[0] == (lens, 64, 132, None)
    assert module.calls[2] == (64, None)
    assert logits.shape == (2, 64)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules by name for the loader, which takes the host for a device."""
    found: dict[str, Any] = {}

    def find(name: str) -> Any:
        if name not in found:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return found[name]

    monkeypatch.setattr(importlib, "import_module", find)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "device", lambda *_: CPU)
    return found


load = load_deep_gemm.__wrapped__


@pytest.mark.parametrize("has_varlen", [True, False])
def test_a_module_that_is_right(modules: dict[str, Any], has_varlen: bool) -> None:
    modules["vllm.third_party.deep_gemm"] = module = Module(has_varlen=has_varlen)
    assert load() == DeepGemm(module, has_varlen=has_varlen)


def test_a_form_that_is_wrong_is_not_used(modules: dict[str, Any]) -> None:
    modules["deep_gemm"] = module = Module(has_varlen=True, varlen_factor=1.5)
    assert load() == DeepGemm(module, has_varlen=False)
    modules["deep_gemm"] = Module(has_varlen=True, factor=1.5)
    assert isinstance(load(), DeepGemmUnavailable)


def test_the_module_of_its_own_goes_first(modules: dict[str, Any]) -> None:
    modules["vllm.third_party.deep_gemm"] = Module()
    modules["deep_gemm"] = module = Module()
    assert load() == DeepGemm(module)


def test_every_reason_is_given(modules: dict[str, Any]) -> None:
    modules["deep_gemm"] = SimpleNamespace(get_num_sms=None)
    modules["vllm.third_party.deep_gemm"] = Module(factor=1.5)
    assert load() == DeepGemmUnavailable(
        "deep_gemm: RuntimeError: has no get_paged_mqa_logits_metadata, fp8_fp4_paged_mqa_logits; "
        "vllm.third_party.deep_gemm: RuntimeError: its logits are off by 0.5 of their size"
    )


def test_nothing_is_loaded_without_a_device(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    modules["deep_gemm"] = Module()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load() == DeepGemmUnavailable("there is no CUDA device")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("num_heads", [32, 64])
@pytest.mark.parametrize("query_lens", [[1] * 9, [3, 1, 0, 8, 2]])
def test_agrees_with_the_triton_kernel(num_heads: int, query_lens: list[int]) -> None:
    gemm = load_deep_gemm()
    if isinstance(gemm, DeepGemmUnavailable):
        pytest.skip(gemm.reason)
    lens = [count + int(torch.randint(0, 989, ())) for count in query_lens]
    batch = pages(query_lens, lens)
    cache, _ = key_cache(batch.num_blocks)
    num_rows = len(batch.request_ids)
    query = torch.randn(num_rows, num_heads, INDEX_DIM).to(torch.float8_e4m3fn).cuda()
    weights = torch.randn(num_rows, num_heads).cuda()
    cache, tables = cache.cuda(), batch.block_tables.cuda()
    ids, context_lens = batch.request_ids.cuda(), batch.context_lens.cuda()
    width = batch.max_context_tokens
    ours = indexer_logits(
        query, weights, cache, tables, ids, context_lens, max_context_tokens=width
    )
    row_tables = tables[ids.long().clamp(min=0)].contiguous()
    row_lens = context_lens[:, None].contiguous()
    logits = gemm.paged_logits(
        query[:, None],
        weights,
        cache,
        row_lens,
        row_tables,
        gemm.schedule(row_lens),
        max_context_tokens=width,
    )
    is_context = torch.arange(width, device="cuda") < context_lens[:, None]
    error = (logits - ours)[is_context].norm() / ours[is_context].norm()
    assert error < 2e-3


def test_the_trial_tells_a_wrong_layout() -> None:
    assert deep_gemm._trial_error(DeepGemm(Module()), CPU, varlen=False) < 1e-5
    assert deep_gemm._trial_error(DeepGemm(Module(factor=-1.0)), CPU, varlen=False) > 1
