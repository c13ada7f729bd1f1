"""Latent attention over chosen tokens against float64 softmax over the gathered entries."""

from __future__ import annotations

import pytest
import torch
from specsched_kernels.sparse_mla import sparse_mla

from tests.kernels._mla_cases import Pages, pages, tokens_of

SCALE = 0.1


def choose(batch: Pages, k: int, *, gaps: bool = False) -> torch.Tensor:
    """Up to k ascending positions of each row's context, then -1; with gaps, -1 in between too."""
    chosen = torch.full((len(batch.context_lens), k), -1, dtype=torch.int32)
    for row, length in enumerate(batch.context_lens.tolist()):
        positions = torch.randperm(length)[:k].sort().values
        chosen[row, : len(positions)] = positions.to(torch.int32)
    if gaps:
        chosen[:, ::3] = -1
    return chosen


def attend(
    batch: Pages,
    chosen: torch.Tensor,
    sizes: tuple[int, int, int],
    *,
    dtype: torch.dtype,
    device: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the device code for `device` (the reference for "") gives, and the exact output."""
    from specsched_kernels.triton.sparse_mla import sparse_mla as launch

    num_heads, value_dim, rope_dim = sizes
    num_rows = len(batch.request_ids)
    query = torch.randn(num_rows, num_heads, value_dim + rope_dim).to(dtype)
    cache = torch.randn(batch.num_blocks, 64, value_dim + rope_dim).to(dtype)
    exact = torch.zeros(num_rows, num_heads, value_dim, dtype=torch.float64)
    for row in range(num_rows):
        positions = chosen[row][chosen[row] >= 0].long()
        if batch.request_ids[row] >= 0 and len(positions):
            entries = tokens_of(batch, row, cache)[positions].double()
            weights = (query[row].double() @ entries.T * SCALE).softmax(-1)
            exact[row] = weights @ entries[:, :value_dim]
    tensors = (query, cache, chosen, batch.block_tables, batch.request_ids)
    out = torch.full(exact.shape, 77.0, dtype=dtype, device=device or "cpu")
    if device:
        launch(*[tensor.to(device) for tensor in tensors], SCALE, out)
    else:
        sparse_mla(*tensors, scale=SCALE, value_dim=value_dim, out=out)
    return out.cpu().double(), exact


def check(out: torch.Tensor, exact: torch.Tensor, tolerance: float) -> None:
    assert (out - exact).norm() <= tolerance * exact.norm()
    is_empty = (exact == 0).all(-1)
    assert not out[is_empty].any()


RAGGED = ([3, 1, 0, 4], [130, 64, 5, 300])
SIZES = [(4, 32, 16), (1, 16, 0), (20, 48, 24)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("k", [1, 40, 99])
@pytest.mark.parametrize("gaps", [False, True])
def test_device_code(device: str, sizes: tuple[int, int, int], k: int, gaps: bool) -> None:
    batch = pages(*RAGGED)
    chosen = choose(batch, k, gaps=gaps)
    check(*attend(batch, chosen, sizes, dtype=torch.float32, device=device), 1e-5)


@pytest.mark.parametrize("gaps", [False, True])
def test_splits_are_combined(device: str, gaps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from specsched_kernels.triton import sparse_mla_plan

    monkeypatch.setattr(sparse_mla_plan, "_chunk_tokens", lambda *_: 32)
    batch = pages(*RAGGED)
    chosen = choose(batch, 130, gaps=gaps)
    check(*attend(batch, chosen, (4, 32, 16), dtype=torch.float32, device=device), 1e-5)


def test_a_request_of_padding_is_not_looked_up(device: str) -> None:
    """Even where its row has chosen tokens: the request's block table does not exist."""
    batch = pages([2], [70], padding=3)
    chosen = torch.zeros(5, 4, dtype=torch.int32)
    check(*attend(batch, chosen, (4, 16, 16), dtype=torch.float32, device=device), 1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("num_heads", [128, 64, 16, 5])
@pytest.mark.parametrize("num_requests", [1, 7, 99])
def test_bfloat16_sizes_of_the_published_model(num_heads: int, num_requests: int) -> None:
    query_lens = torch.randint(1, 4, (num_requests,)).tolist()
    lens = [rows + int(torch.randint(0, 3000, ())) for rows in query_lens]
    batch = pages(query_lens, lens)
    sizes = (num_heads, 512, 64)
    check(*attend(batch, choose(batch, 2048), sizes, dtype=torch.bfloat16, device="cuda"), 1e-2)


def test_reference() -> None:
    batch = pages(*RAGGED)
    chosen = choose(batch, 40, gaps=True)
    check(*attend(batch, chosen, (4, 32, 16), dtype=torch.float64, device=""), 1e-12)


def test_bad_arguments_are_refused() -> None:
    batch = pages([1], [5], padding=0)
    query, cache = torch.zeros(1, 2, 24), torch.zeros(batch.num_blocks, 64, 24)
    chosen = torch.zeros(1, 3, dtype=torch.int32)
    rest = (batch.block_tables, batch.request_ids)
    with pytest.raises(ValueError, match="value_dim is 25"):
        sparse_mla(query, cache, chosen, *rest, scale=1.0, value_dim=25)
    with pytest.raises(ValueError, match=r"topk is torch\.int64"):
        sparse_mla(query, cache, chosen.long(), *rest, scale=1.0, value_dim=16)
    with pytest.raises(ValueError, match=r"latent_cache is torch\.bfloat16"):
        sparse_mla(query, cache.bfloat16(), chosen, *rest, scale=1.0, value_dim=16)
