"""Scores of the indexer against float64 sums over the gathered keys."""

from __future__ import annotations

import pytest
import torch
from specsched_kernels.indexer_logits import INDEX_DIM, indexer_logits

from tests.kernels._mla_cases import Pages, key_cache, pages, tokens_of

FILL = 77.0


def score(batch: Pages, num_heads: int, device: str) -> tuple[torch.Tensor, ...]:
    """What the device code for `device` (the reference for "") gives, the exact logits, their size.

    The size is the most that a logit could be with queries and keys of these lengths.
    """
    from specsched_kernels.triton.indexer_logits import indexer_logits as launch

    cache, keys = key_cache(batch.num_blocks)
    num_rows = len(batch.request_ids)
    query = torch.randn(num_rows, num_heads, INDEX_DIM).to(torch.float8_e4m3fn)
    weights = torch.randn(num_rows, num_heads)
    exact = torch.full((num_rows, batch.max_context_tokens + 3), FILL, dtype=torch.float64)
    size = torch.zeros_like(exact)
    for row in range(num_rows):
        if batch.request_ids[row] >= 0:
            scores = (query[row].double() @ tokens_of(batch, row, keys).T).relu()
            exact[row, : scores.shape[1]] = weights[row].double() @ scores
            length = weights[row].double().abs() @ query[row].double().norm(dim=-1)
            size[row, : scores.shape[1]] = length * tokens_of(batch, row, keys).norm(dim=-1)
    tensors = (query, weights, cache, batch.block_tables, batch.request_ids, batch.context_lens)
    out = torch.full(exact.shape, FILL, device=device or "cpu")
    if device:
        launch(*[tensor.to(device) for tensor in tensors], out)
    else:
        indexer_logits(*tensors, max_context_tokens=out.shape[1], out=out)
    return out.cpu().double(), exact, size


BATCHES = [
    ([1], [1]),
    ([3, 1, 0, 8], [130, 64, 5, 300]),
    ([2, 1], [63, 129]),
]


@pytest.mark.parametrize(("query_lens", "context_lens"), BATCHES)
@pytest.mark.parametrize("num_heads", [1, 5, 64])
def test_device_code(
    device: str, num_heads: int, query_lens: list[int], context_lens: list[int]
) -> None:
    """The interpreter multiplies in float16, which holds e4m3; the device sums in fewer bits."""
    out, exact, size = score(pages(query_lens, context_lens), num_heads, device)
    is_context = exact != FILL
    assert torch.equal(out[~is_context], exact[~is_context])
    tolerance = 1e-6 if device == "cpu" else 2e-4
    assert ((out - exact)[is_context].abs() <= tolerance * size[is_context]).all()


@pytest.mark.parametrize(("query_lens", "context_lens"), BATCHES)
def test_reference(query_lens: list[int], context_lens: list[int]) -> None:
    out, exact, size = score(pages(query_lens, context_lens), 5, "")
    assert ((out - exact).abs() <= 1e-6 * size).all()


def test_a_row_does_not_depend_on_the_others() -> None:
    batch = pages([2, 3], [70, 200])
    cache, _ = key_cache(batch.num_blocks)
    query = torch.randn(7, 4, INDEX_DIM).to(torch.float8_e4m3fn)
    weights = torch.randn(7, 4)
    rows = (query, weights, batch.request_ids, batch.context_lens)

    def logits(chosen: slice) -> torch.Tensor:
        q, w, ids, lens = (tensor[chosen] for tensor in rows)
        out = torch.zeros(len(q), 200)
        return indexer_logits(
            q, w, cache, batch.block_tables, ids, lens, max_context_tokens=200, out=out
        )

    assert torch.equal(logits(slice(None))[3:4], logits(slice(3, 4)))


def test_bad_arguments_are_refused() -> None:
    batch = pages([1], [5], padding=0)
    cache, _ = key_cache(batch.num_blocks)
    query, weights = torch.zeros(1, 2, 128).to(torch.float8_e4m3fn), torch.zeros(1, 2)
    rest = (batch.block_tables, batch.request_ids, batch.context_lens)
    with pytest.raises(ValueError, match=r"query is torch\.float32"):
        indexer_logits(query.float(), weights, cache, *rest, max_context_tokens=5)
    with pytest.raises(ValueError, match="key_cache has shape"):
        indexer_logits(query, weights, cache[:, :32], *rest, max_context_tokens=5)
    with pytest.raises(ValueError, match=r"context_lens is torch\.int64"):
        indexer_logits(
            query, weights, cache, *rest[:2], batch.context_lens.long(), max_context_tokens=5
        )
