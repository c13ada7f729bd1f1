"""Which layout the indexer's queries get, and what DeepGEMM is called with in each."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from specsched_executor.core import PAD_SLOT, ModelBatch
from specsched_executor.model.backend_traits import BackendTraits, CaptureLevel, refusals
from specsched_executor.model.sparse_mla import indexer
from specsched_executor.model.sparse_mla.indexer import begin_indexer
from specsched_executor.model.sparse_mla.layouts import (
    IndexerDevice,
    IndexerLayout,
    choose_layout,
    indexer_traits,
    probe_indexer,
)
from specsched_kernels.deep_gemm import DeepGemm
from specsched_kernels.indexer_logits import indexer_logits

HEADS, BLOCK, MAX_BLOCKS, K = 32, 64, 3, 20


class FakeDeepGemm:
    """A module that keeps what it was called with, and computes what DeepGEMM does."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, SimpleNamespace]] = []

    def get_num_sms(self) -> int:
        return 132

    def get_paged_mqa_logits_metadata(self, context_lens, block_kv, num_sms, **varlen):
        self.calls.append(
            ("schedule", SimpleNamespace(lens=context_lens, sizes=(block_kv, num_sms), **varlen))
        )
        return torch.zeros(num_sms + 1, 2, dtype=torch.int32)

    def fp8_fp4_paged_mqa_logits(
        self, query, cache, weights, lens, tables, schedule, max_context, **varlen
    ):
        values, fp4_scales = query
        assert fp4_scales is None
        assert cache.shape[1:] == (BLOCK, 1, 132)
        assert schedule.shape == (133, 2)
        num_requests, next_n = lens.shape
        assert values.shape == (num_requests, next_n, HEADS, 128)
        assert tables.shape[0] == num_requests
        self.calls.append(("logits", SimpleNamespace(lens=lens, tables=tables, **varlen)))
        rows = num_requests * next_n
        return indexer_logits(
            values.reshape(rows, HEADS, 128),
            weights,
            cache.squeeze(2),
            tables,
            (torch.arange(rows) // next_n).to(torch.int32),
            lens.flatten().to(torch.int32),
            max_context_tokens=max_context,
            out=torch.zeros(rows, max_context),
        )


def gemm(*, has_varlen: bool = False) -> DeepGemm:
    return DeepGemm(FakeDeepGemm(), has_varlen=has_varlen)


CPU = IndexerDevice(None)
AMPERE = IndexerDevice((8, 0))
HOPPER = IndexerDevice((9, 0), gemm())
HOPPER_WITHOUT = IndexerDevice((9, 0), reason="not installed")
BLACKWELL = IndexerDevice((10, 0), gemm(has_varlen=True))
BLACKWELL_WITHOUT = IndexerDevice((10, 0), reason="not installed")
CONSUMER_BLACKWELL = IndexerDevice((12, 0), gemm())


@pytest.mark.parametrize(
    ("device", "is_scheduled", "num_requests", "layout"),
    [
        (CPU, True, 1, "generic"),
        (CPU, True, 8, "generic"),
        (CPU, False, 8, "generic"),
        (AMPERE, True, 8, "generic"),
        (AMPERE, False, 8, "generic"),
        (HOPPER_WITHOUT, True, 8, "generic"),
        (HOPPER_WITHOUT, False, 1, "generic"),
        (HOPPER, True, 8, "flattened"),
        (HOPPER, True, 2, "flattened"),
        (HOPPER, True, 1, "uniform"),
        (HOPPER, False, 8, "uniform"),
        (HOPPER, False, 1, "uniform"),
        (BLACKWELL, True, 8, "native"),
        (BLACKWELL, True, 1, "native"),
        (BLACKWELL, False, 8, "uniform"),
        (BLACKWELL_WITHOUT, True, 8, "generic"),
        (CONSUMER_BLACKWELL, True, 8, "flattened"),
    ],
)
def test_the_table(device, is_scheduled, num_requests, layout):
    chosen = choose_layout(device, is_scheduled=is_scheduled, num_requests=num_requests)
    assert chosen == layout


def test_what_cannot_be_used_is_said():
    assert "no CUDA device" in probe_indexer(torch.device("cpu"), 64).reason


@pytest.mark.parametrize(
    ("layout", "capture", "may_differ"),
    [
        (IndexerLayout.NATIVE, CaptureLevel.ALWAYS, True),
        (IndexerLayout.FLATTENED, CaptureLevel.ALWAYS, True),
        (IndexerLayout.GENERIC, CaptureLevel.ALWAYS, True),
        (IndexerLayout.UNIFORM, CaptureLevel.UNIFORM_BATCH, False),
    ],
)
def test_what_a_layout_declares(layout, capture, may_differ):
    traits = indexer_traits(layout)
    assert (traits.capture, traits.lengths_may_differ) == (capture, may_differ)


def test_all_reasons_are_told_at_once_and_drafters_do_not_count():
    always = BackendTraits("grouped attention", CaptureLevel.ALWAYS, lengths_may_differ=True)
    never = BackendTraits("slow", CaptureLevel.NEVER, lengths_may_differ=False)
    uniform = BackendTraits("even", CaptureLevel.UNIFORM_BATCH, lengths_may_differ=True)
    draft = BackendTraits("draft", CaptureLevel.NEVER, lengths_may_differ=False, is_draft=True)
    assert refusals([always, draft]) == []
    reasons = refusals([never, always, uniform, draft])
    assert [reason.split()[0] for reason in reasons] == ["slow", "slow", "even"]
    assert "NEVER, not ALWAYS" in reasons[0]
    assert "UNIFORM_BATCH, not ALWAYS" in reasons[2]


# ===================== What DeepGEMM is called with =====================


def ragged(query_lens: list[int], *, padding: int = 0, uniform: int | None = None) -> ModelBatch:
    count, contexts = len(query_lens), [100, 70, 150][: len(query_lens)]
    positions = torch.cat(
        [torch.arange(at - n, at) for at, n in zip(contexts, query_lens, strict=True)]
    )
    pad = torch.zeros(padding, dtype=torch.int64)
    return ModelBatch(
        token_ids=torch.zeros(len(positions) + padding, dtype=torch.int64),
        positions=torch.cat([positions, pad]),
        slot_mapping=torch.cat([positions, pad + PAD_SLOT]),
        query_start_loc=torch.tensor([0, *query_lens]).cumsum(0),
        context_lens=torch.tensor(contexts),
        block_tables=torch.arange(count * MAX_BLOCKS, dtype=torch.int32).view(count, MAX_BLOCKS),
        logit_rows=torch.tensor([0]),
        uniform_query_len=uniform,
    )


def chosen_in(layout: IndexerLayout, device: IndexerDevice, batch: ModelBatch) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    num_rows = len(batch.positions)
    query = torch.randn((num_rows, HEADS, 128), generator=generator).to(torch.float8_e4m3fn)
    weights = torch.randn((num_rows, HEADS), generator=generator)
    cache = torch.zeros((9, BLOCK, 132), dtype=torch.uint8)
    blocks = cache.view(9, -1)
    values = torch.randn((9, BLOCK * 128), generator=generator).to(torch.float8_e4m3fn)
    blocks[:, : BLOCK * 128] = values.view(torch.uint8)
    blocks[:, BLOCK * 128 :].view(torch.float32).fill_(0.5)
    step = begin_indexer(layout, device, batch, MAX_BLOCKS * BLOCK)
    assert step.rows.request_ids.dtype == step.rows.context_lens.dtype == torch.int32
    return step.choose(query, weights, cache, K)


def test_native_rows_come_with_their_requests():
    """SM100 alone has the kernel: here it is what it would be called with."""
    device = IndexerDevice((10, 0), gemm(has_varlen=True))
    batch = ragged([2, 0, 3], padding=2)
    chosen = chosen_in(IndexerLayout.NATIVE, device, batch)
    (_, schedule), (_, call) = device.deep_gemm.module.calls
    assert schedule.sizes == (64, 132)
    for asked in (schedule, call):
        assert asked.indices.tolist() == [0, 0, 2, 2, 2, -1, -1]
        assert asked.lens.tolist() == [[99], [100], [148], [149], [150], [0], [0]]
    assert call.tables[:2, :2].tolist() == [[0, 1]] * 2
    assert call.tables[2:5].tolist() == [[6, 7, 8]] * 3
    assert torch.equal(chosen, chosen_in(IndexerLayout.GENERIC, CPU, batch))


def test_flattened_rows_are_requests_of_one_token():
    device = IndexerDevice((9, 0), gemm())
    batch = ragged([1, 4, 0], padding=1)
    chosen = chosen_in(IndexerLayout.FLATTENED, device, batch)
    (_, schedule), (_, call) = device.deep_gemm.module.calls
    assert not hasattr(schedule, "indices")
    assert not hasattr(call, "indices")
    assert call.lens.tolist() == [[100], [67], [68], [69], [70], [0]]
    assert call.tables[:5, :2].tolist() == [[0, 1]] + [[3, 4]] * 4
    assert torch.equal(chosen, chosen_in(IndexerLayout.GENERIC, CPU, batch))


@pytest.mark.parametrize(
    ("query_len", "lens", "tables"),
    [
        (1, [[100], [70], [150]], [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        (
            2,
            [[99], [100], [69], [70], [149], [150]],
            [[0, 1, 2]] * 2 + [[3, 4, 5]] * 2 + [[6, 7, 8]] * 2,
        ),
        (
            3,
            [[98], [99], [100], [68], [69], [70], [148], [149], [150]],
            [[0, 1, 2]] * 3 + [[3, 4, 5]] * 3 + [[6, 7, 8]] * 3,
        ),
    ],
)
def test_uniform_rows_need_no_lengths_from_the_device(query_len, lens, tables):
    device = IndexerDevice((9, 0), gemm())
    batch = ragged([query_len] * 3, uniform=query_len)
    chosen = chosen_in(IndexerLayout.UNIFORM, device, batch)
    call = device.deep_gemm.module.calls[-1][1]
    assert call.lens.tolist() == lens
    assert call.tables.tolist() == tables
    assert torch.equal(chosen, chosen_in(IndexerLayout.GENERIC, CPU, batch))


def test_a_single_request_is_uniform_with_its_padding():
    device = IndexerDevice((9, 0), gemm())
    batch = ragged([3], padding=1, uniform=4)
    chosen = chosen_in(IndexerLayout.UNIFORM, device, batch)
    assert device.deep_gemm.module.calls[-1][1].lens.tolist() == [[98], [99], [100], [0]]
    assert torch.equal(chosen, chosen_in(IndexerLayout.GENERIC, CPU, batch))


def test_unequal_requests_in_the_uniform_layout_are_flattened():
    device = IndexerDevice((9, 0), gemm())
    batch = ragged([1, 2, 3])
    chosen = chosen_in(IndexerLayout.UNIFORM, device, batch)
    assert len(device.deep_gemm.module.calls[-1][1].lens) == 6
    assert torch.equal(chosen, chosen_in(IndexerLayout.GENERIC, CPU, batch))


@pytest.mark.parametrize("layout", ["native", "flattened", "uniform"])
def test_steps_with_prompts_are_left_to_our_kernel(layout):
    """DeepGEMM would compile for their number of rows."""
    device = IndexerDevice((9, 0), gemm(has_varlen=True))
    batch = replace(ragged([30, 2, 1]), has_prompts=True)
    chosen = chosen_in(IndexerLayout(layout), device, batch)
    assert device.deep_gemm.module.calls == []
    assert torch.equal(chosen, chosen_in(IndexerLayout.GENERIC, CPU, batch))


def test_logits_of_many_rows_are_not_there_at_once(monkeypatch):
    batch = ragged([9, 0, 12], padding=2)
    expected = chosen_in(IndexerLayout.GENERIC, CPU, batch)
    assert int((expected >= 0).sum()) == 21 * K
    sizes = []

    def counting(query, *arguments, **options):
        sizes.append(len(query))
        return indexer_logits(query, *arguments, **options)

    monkeypatch.setattr(indexer, "indexer_logits", counting)
    monkeypatch.setattr(indexer, "MAX_LOGITS_BYTES", 5 * 4 * MAX_BLOCKS * BLOCK + 3)
    assert torch.equal(chosen_in(IndexerLayout.GENERIC, CPU, batch), expected)
    assert sizes == [5, 5, 5, 5, 3]


def test_rows_that_are_not_as_many_as_was_said_are_refused():
    with pytest.raises(ValueError, match="6 rows of 3 requests; accepted: 3 of each"):
        chosen_in(IndexerLayout.UNIFORM, HOPPER, ragged([1, 2, 3], uniform=3))
