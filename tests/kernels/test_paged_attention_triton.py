"""Device code of attention and KV writes against float64 attention over the gathered context."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch


@dataclass
class Ragged:
    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    query_start_loc: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    max_query_len: int
    max_context_tokens: int


def ragged(
    seed: int,
    query_lens: list[int],
    context_lens: list[int],
    heads: tuple[int, int],
    head_dim: int,
    *,
    dtype: torch.dtype,
    device: str,
    block_size: int = 16,
    padding: int = 3,
) -> Ragged:
    """Contexts in shuffled blocks; rows are the last `query_len` tokens of each context."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = [-(-length // block_size) for length in context_lens]
    order = torch.randperm(sum(num_blocks) + 2, generator=generator).to(torch.int32)
    tables = torch.zeros(len(query_lens), max(num_blocks), dtype=torch.int32)
    start = 0
    for request, count in enumerate(num_blocks):
        tables[request, :count] = order[start : start + count]
        start += count
    num_rows = sum(query_lens) + padding

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    caches = (len(order), block_size, heads[1], head_dim)
    return Ragged(
        query=normal(num_rows, heads[0], head_dim),
        key_cache=normal(*caches),
        value_cache=normal(*caches),
        query_start_loc=torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32).to(device),
        context_lens=torch.tensor(context_lens).to(device),
        block_tables=tables.to(device),
        max_query_len=max(query_lens),
        max_context_tokens=max(context_lens),
    )


def exact_attention(batch: Ragged, scale: float, *, is_causal: bool = True) -> torch.Tensor:
    """float64 [n, H, D], row by row; NaN in padded rows."""
    query, keys, values = (
        t.cpu().double() for t in (batch.query, batch.key_cache, batch.value_cache)
    )
    group = query.shape[1] // keys.shape[2]
    out = torch.full_like(query, float("nan"))
    locs, tables = batch.query_start_loc.tolist(), batch.block_tables.cpu()
    for request, context_len in enumerate(batch.context_lens.tolist()):
        context_k, context_v = (
            t[tables[request].long()].flatten(0, 1).repeat_interleave(group, dim=1)
            for t in (keys, values)
        )
        for row in range(locs[request], locs[request + 1]):
            end = context_len - (locs[request + 1] - 1 - row) if is_causal else context_len
            scores = torch.einsum("hd,thd->ht", query[row], context_k[:end]) * scale
            out[row] = torch.einsum("ht,thd->hd", scores.softmax(-1), context_v[:end])
    return out


def check(
    batch: Ragged, tolerance: float, *, is_causal: bool = True, order: torch.Tensor | None = None
) -> None:
    from specsched_kernels.triton.paged_attention import paged_attention

    scale = batch.query.shape[-1] ** -0.5
    out = torch.full_like(batch.query, 77.0)
    paged_attention(
        batch.query,
        batch.key_cache,
        batch.value_cache,
        out,
        query_start_loc=batch.query_start_loc,
        context_lens=batch.context_lens,
        block_tables=batch.block_tables,
        scale=scale,
        max_query_len=batch.max_query_len,
        max_context_tokens=batch.max_context_tokens,
        is_causal=is_causal,
        order=order,
    )
    num_rows = int(batch.query_start_loc[-1])
    expected = exact_attention(batch, scale, is_causal=is_causal)[:num_rows]
    error = (out[:num_rows].cpu().double() - expected).norm() / expected.norm()
    assert error < tolerance
    assert (out[num_rows:] == 0).all()


@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (8, 1)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_ragged_batch(device: str, heads: tuple[int, int], head_dim: int) -> None:
    batch = ragged(0, [1, 8, 3], [1, 99, 65], heads, head_dim, dtype=torch.float32, device=device)
    check(batch, 1e-5)


def test_long_contexts_are_split_and_short_ones_are_not(device: str) -> None:
    batch = ragged(
        1, [5, 2, 1, 0], [989, 258, 7, 16], (4, 2), 64, dtype=torch.float32, device=device
    )
    from specsched_kernels.triton import attention_plan

    plan = attention_plan.AttentionPlan.of(
        batch.query, batch.key_cache, len(batch.context_lens), 5, batch.max_context_tokens
    )
    if device == "cuda":
        assert plan.num_splits > 1
    check(batch, 1e-5)


@pytest.mark.parametrize("is_causal", [True, False])
def test_every_split_is_combined(
    device: str, monkeypatch: pytest.MonkeyPatch, is_causal: bool
) -> None:
    from specsched_kernels.triton import attention_plan

    monkeypatch.setattr(attention_plan, "_chunk_tokens", lambda *_: 64)
    batch = ragged(
        2, [4, 6, 1], [66, 300, 64], (6, 2), 64, dtype=torch.float32, device=device, block_size=32
    )
    check(batch, 1e-5, is_causal=is_causal)


@pytest.mark.parametrize("chunk_tokens", [64, 512])
def test_requests_in_any_order_attend_to_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch, chunk_tokens: int
) -> None:
    from specsched_kernels.triton import attention_plan

    monkeypatch.setattr(attention_plan, "_chunk_tokens", lambda *_: chunk_tokens)
    batch = ragged(
        4, [4, 0, 6, 1, 2], [66, 9, 300, 64, 128], (6, 2), 64, dtype=torch.float32, device=device
    )
    check(batch, 1e-5, order=torch.tensor([3, 0, 4, 1, 2], dtype=torch.int32, device=device))


@pytest.mark.parametrize("num_requests", [1, 17, 300])
@pytest.mark.parametrize("max_context_tokens", [99, 6000])
def test_the_longest_last_piece_begins(
    device: str, num_requests: int, max_context_tokens: int
) -> None:
    from specsched_kernels.triton.attention_order import attention_order
    from specsched_kernels.triton.attention_plan import AttentionPlan

    lens = torch.randint(0, max_context_tokens, (num_requests,))
    query = torch.empty(num_requests, 4, 64, device=device)
    cache = torch.empty(1, 16, 2, 64, device=device)
    order = attention_order(
        query, cache, lens.to(device), max_query_len=1, max_context_tokens=max_context_tokens
    )
    assert order is not None
    plan = AttentionPlan.of(query, cache, num_requests, 1, max_context_tokens)
    pieces = torch.where(lens > 0, (lens - 1) % plan.chunk_tokens + 1, 0)
    assert order.cpu().tolist() == pieces.argsort(descending=True, stable=True).tolist()
    long_queries = {"max_query_len": 999, "max_context_tokens": max_context_tokens}
    assert attention_order(query, cache, lens.to(device), **long_queries) is None


def test_prefill_takes_several_tiles(device: str) -> None:
    batch = ragged(3, [50, 1, 18], [70, 30, 18], (4, 2), 64, dtype=torch.float32, device=device)
    check(batch, 1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("heads", [(9, 3), (32, 8), (64, 8), (16, 16)])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("num_requests", [1, 7, 99])
def test_bfloat16_ugly_sizes(heads: tuple[int, int], head_dim: int, num_requests: int) -> None:
    generator = torch.Generator().manual_seed(num_requests)
    query_lens = torch.randint(1, 9, (num_requests,), generator=generator)
    context_lens = query_lens + torch.randint(0, 989, (num_requests,), generator=generator)
    lens = query_lens.tolist(), context_lens.tolist()
    check(ragged(0, *lens, heads, head_dim, dtype=torch.bfloat16, device="cuda"), 1e-2)


def test_write_kv_leaves_out_negative_slots(device: str) -> None:
    from specsched_kernels.triton.write_kv import write_kv

    cache = torch.full((2, 5, 4, 3, 24), 77.0, device=device)
    rows = torch.randn(2, 6, 3, 24, device=device)
    slots = torch.tensor([19, -1, 0, 7, -1, 8], device=device)
    write_kv(rows[0], rows[1], cache[0], cache[1], slots)
    expected = torch.full_like(cache, 77.0)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[:, slot // 4, slot % 4] = rows[:, row]
    assert torch.equal(cache, expected)
