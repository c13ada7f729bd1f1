"""The public calls on CUDA tensors: same result as on the CPU, nothing read back, capturable."""

from __future__ import annotations

import pytest
import torch
from specsched_kernels.draft_confidence import ConfidenceHead, draft_confidence
from specsched_kernels.draw_drafts import draw_drafts
from specsched_kernels.pack_rows import pack_rows
from specsched_kernels.paged_attention import attention_order, paged_attention
from specsched_kernels.rms_norm import rms_norm
from specsched_kernels.rope import rope
from specsched_kernels.verify_drafts import VerifyOutcome, verify_drafts
from specsched_kernels.window_pages import WindowPages, place_blocks, place_context
from specsched_kernels.write_kv import write_kv

from tests.kernels.test_draw_drafts import make_case
from tests.kernels.test_pack_rows import step
from tests.kernels.test_paged_attention_triton import exact_attention, ragged
from tests.kernels.test_verify_drafts import move, random_inputs
from tests.kernels.test_window_pages import committed_rows, moved, tables

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]


@pytest.fixture(autouse=True)
def _restore_sync_debug_mode():
    """Tests set it to "error": a call that waits for the device raises."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_attention_and_kv_writes() -> None:
    batch = ragged(0, [3, 1, 8], [70, 5, 300], (9, 3), 64, dtype=torch.float32, device="cuda")
    rows = torch.randn(2, 4, 3, 64, device="cuda")
    slots = torch.tensor([17, -1, 3, 40], device="cuda")
    expected = torch.stack([batch.key_cache, batch.value_cache])
    expected.flatten(1, 2)[:, [17, 3, 40]] = rows[:, [0, 2, 3]]
    torch.cuda.set_sync_debug_mode("error")
    write_kv(rows[0], rows[1], slots, batch.key_cache, batch.value_cache)
    out = paged_attention(
        batch.query,
        batch.key_cache,
        batch.value_cache,
        batch.block_tables,
        batch.query_start_loc,
        batch.context_lens,
        scale=0.125,
    )
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(torch.stack([batch.key_cache, batch.value_cache]), expected)
    exact = exact_attention(batch, 0.125)[:12]
    assert (out[:12].cpu().double() - exact).norm() / exact.norm() < 1e-5
    assert not out[12:].any()
    with pytest.raises(ValueError, match="accepted on CUDA"):
        write_kv(rows[0], rows[1], slots, batch.key_cache.mT.contiguous().mT, batch.value_cache)


def test_norm_and_rope() -> None:
    x, weight = torch.randn(7, 576), torch.randn(576)
    query, key = torch.randn(7, 9, 64), torch.randn(7, 3, 64)
    positions, cos_sin = torch.arange(7) * 3, torch.randn(30, 64)
    inputs = [t.cuda() for t in (x, weight, query, key, positions, cos_sin)]
    torch.cuda.set_sync_debug_mode("error")
    normed = rms_norm(inputs[0], inputs[1], 1e-5)
    rope(inputs[2], inputs[3], inputs[4], inputs[5])
    torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(normed.cpu(), rms_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-5)
    rope(query, key, positions, cos_sin)
    torch.testing.assert_close(inputs[2].cpu(), query, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(inputs[3].cpu(), key, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stochastic", [False, True])
def test_verification_captures_into_a_graph(stochastic: bool) -> None:
    inputs = random_inputs(0, "mixed", 33, 4, 9001, stochastic=stochastic)
    expected, moved = verify_drafts(inputs), move(inputs, "cuda")
    out = VerifyOutcome.empty(33, 4, "cuda")
    verify_drafts(moved, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        verify_drafts(moved, out=out)
    out.token_ids.fill_(-77)
    graph.replay()
    assert torch.equal(out.token_ids.cpu(), expected.token_ids)
    assert torch.equal(out.num_accepted.cpu(), expected.num_accepted)


@pytest.mark.parametrize("is_drawing", [False, True])
def test_drafting_captures_into_a_graph(is_drawing: bool) -> None:
    case = make_case(70, 4, 9001, 64, is_drawing=is_drawing)
    arguments = (case.base_logits, case.anchor_ids, case.markov)
    expected, moved = draw_drafts(*arguments, case.draws), case.to("cuda")
    out = torch.empty(70, 4, dtype=torch.int64, device="cuda")

    def draft() -> None:
        draw_drafts(moved.base_logits, moved.anchor_ids, moved.markov, moved.draws, out=out)

    draft()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        draft()
    out.fill_(-77)
    graph.replay()
    assert torch.equal(out.cpu(), expected)


def test_blocks_contexts_confidences_and_orders_read_nothing_back() -> None:
    pages, held, rows = WindowPages(24, 3, 7), tables(), committed_rows(9, 2)
    slot_ids, draft_lens = torch.arange(9), torch.full((9,), 3, dtype=torch.int32)
    tokens, codes = torch.randint(0, 99, (9, 3)), torch.randn(99, 8)
    hidden, head = (
        torch.randn(9, 3, 64),
        ConfidenceHead(torch.randn(64), torch.randn(8), torch.ones(1)),
    )
    expected_blocks = place_blocks(pages, held, slot_ids, draft_lens)
    expected = draft_confidence(hidden, slot_ids, tokens, codes, head)
    expected_context = place_context(pages, rows)
    inputs = [t.cuda() for t in (slot_ids, draft_lens, hidden, tokens, codes)]
    held, rows, head = (moved(record, "cuda") for record in (held, rows, head))
    query, cache = torch.zeros(9, 4, 64, device="cuda"), torch.zeros(1, 16, 2, 64, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    blocks = place_blocks(pages, held, *inputs[:2])
    context = place_context(pages, rows)
    confidence = draft_confidence(inputs[2], inputs[0], inputs[3], inputs[4], head)
    order = attention_order(
        query, cache, blocks.context_lens, max_query_len=1, max_context_tokens=64
    )
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(blocks.positions.cpu(), expected_blocks.positions)
    assert torch.equal(context.cpu(), expected_context)
    torch.testing.assert_close(confidence.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert order is not None
    longest_first = blocks.context_lens.argsort(descending=True, stable=True)
    assert torch.equal(order.long(), longest_first)


def test_packing() -> None:
    allocation, sources = step(1, 9, 3)
    expected = pack_rows(allocation, sources, 16)
    parts = [
        type(record)(**{name: getattr(record, name).cuda() for name in record.__slots__})
        for record in (allocation, sources)
    ]
    packed = pack_rows(parts[0], parts[1], 16)
    assert torch.equal(packed.token_ids.cpu(), expected.token_ids)
    assert torch.equal(packed.slot_mapping.cpu(), expected.slot_mapping)
