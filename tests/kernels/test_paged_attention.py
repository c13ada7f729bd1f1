"""Attention over a paged cache on the CPU against a float64 reference, and its independence."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from specsched_kernels.paged_attention import allocate_kv, paged_attention, storage_arrays
from specsched_kernels.reference import paged_attention as reference
from specsched_kernels.write_kv import write_kv


@dataclass
class Case:
    """A ragged batch with its cache; blocks of a request lie anywhere."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    starts: torch.Tensor
    lens: torch.Tensor

    def arguments(self) -> tuple[torch.Tensor, ...]:
        return self.query, self.keys, self.values, self.tables, self.starts, self.lens


def make_case(
    query_lens: list[int],
    context_lens: list[int],
    *,
    heads: tuple[int, int] = (9, 3),
    head_dim: int = 64,
    block_size: int = 16,
    padding: int = 0,
) -> Case:
    torch.manual_seed(sum(query_lens) * 7 + sum(context_lens))
    num_heads, num_kv_heads = heads
    blocks = [-(-length // block_size) for length in context_lens]
    keys, values = allocate_kv(sum(blocks) + 2, block_size, num_kv_heads, head_dim)
    keys.copy_(torch.randn(keys.shape))
    values.copy_(torch.randn(values.shape))
    order = torch.randperm(sum(blocks) + 2, dtype=torch.int32)
    tables = torch.full((len(blocks), max(blocks) + 1), -1, dtype=torch.int32)
    for request, count in enumerate(blocks):
        first = sum(blocks[:request])
        tables[request, :count] = order[first : first + count]
    rows = sum(query_lens) + padding
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    query = torch.randn(rows, num_heads, head_dim) * 3
    return Case(query, keys, values, tables, starts, torch.tensor(context_lens))


def exact(case: Case, scale: float, *, is_causal: bool = True) -> torch.Tensor:
    query, *rest = case.arguments()
    out = torch.empty_like(query, dtype=torch.float64)
    return reference.paged_attention(
        query.double(), *rest, scale=scale, out=out, is_causal=is_causal
    )


SHAPES = [
    ([1], [1]),
    ([1], [16]),
    ([3], [17]),
    ([1, 8, 2, 1], [257, 99, 2, 989]),
    ([256, 1], [256, 512]),
    ([99, 5, 1], [989, 255, 513]),
    ([0, 4, 0], [30, 40, 7]),
]


@pytest.mark.parametrize(("query_lens", "context_lens"), SHAPES)
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("is_causal", [True, False])
def test_matches_float64(query_lens, context_lens, block_size, is_causal):
    case = make_case(query_lens, context_lens, block_size=block_size)
    got = paged_attention(*case.arguments(), scale=0.125, is_causal=is_causal)
    expected = exact(case, 0.125, is_causal=is_causal)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize(("heads", "head_dim"), [((4, 4), 16), ((8, 1), 128), ((6, 3), 80)])
def test_other_head_shapes(heads, head_dim):
    case = make_case([3, 1], [70, 300], heads=heads, head_dim=head_dim)
    assert storage_arrays(case.keys, case.values) is not None
    got = paged_attention(*case.arguments(), scale=0.2)
    torch.testing.assert_close(got.double(), exact(case, 0.2), rtol=1e-4, atol=2e-6)


def test_sizes_that_fill_no_vector_take_the_reference():
    case = make_case([3, 1], [70, 30], head_dim=10, block_size=5)
    assert storage_arrays(case.keys, case.values) is None
    got = paged_attention(*case.arguments(), scale=0.2)
    torch.testing.assert_close(got.double(), exact(case, 0.2), rtol=1e-4, atol=2e-6)


def test_a_row_does_not_depend_on_its_neighbours():
    case = make_case([8, 1, 300], [700, 33, 600])
    together = paged_attention(*case.arguments(), scale=0.125)
    for request in range(3):
        for row in range(case.starts[request], case.starts[request + 1]):
            hidden_rows = int(case.starts[request + 1]) - row - 1
            alone = paged_attention(
                case.query[row : row + 1],
                case.keys,
                case.values,
                case.tables[request : request + 1],
                torch.tensor([0, 1]),
                case.lens[request : request + 1] - hidden_rows,
                scale=0.125,
            )
            assert torch.equal(alone[0], together[row])


def test_rows_that_see_all_of_their_request_are_as_each_its_last():
    case = make_case([9, 4], [700, 33])
    together = paged_attention(*case.arguments(), scale=0.125, is_causal=False)
    each = paged_attention(
        case.query,
        case.keys,
        case.values,
        case.tables.repeat_interleave(torch.tensor([9, 4]), dim=0),
        torch.arange(14),
        case.lens.repeat_interleave(torch.tensor([9, 4])),
        scale=0.125,
    )
    assert torch.equal(together, each)


def test_threads_do_not_change_a_bit():
    case = make_case([8] * 6, [900] * 6)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = paged_attention(*case.arguments(), scale=0.125)
        torch.set_num_threads(2)
        assert torch.equal(alone, paged_attention(*case.arguments(), scale=0.125))
    finally:
        torch.set_num_threads(threads)


def test_padding_rows_are_zero_and_out_is_filled():
    case = make_case([2, 1], [20, 5], padding=3)
    out = torch.full_like(case.query, 7.0)
    assert paged_attention(*case.arguments(), scale=0.125, out=out) is out
    assert out[3:].eq(0).all()
    assert out[:3].ne(7.0).all()


def test_memory_past_the_context_is_never_used():
    case = make_case([2], [20])
    clean = paged_attention(*case.arguments(), scale=0.125)
    last_block = case.tables[0, 1].item()
    case.keys[last_block, 4:] = float("nan")
    case.values[last_block, 4:] = float("nan")
    assert torch.equal(paged_attention(*case.arguments(), scale=0.125), clean)


def test_nan_stays_in_its_request():
    case = make_case([1, 1], [40, 40])
    clean = paged_attention(*case.arguments(), scale=0.125)
    case.keys[case.tables[0, 1].item(), 2] = float("nan")
    got = paged_attention(*case.arguments(), scale=0.125)
    assert got[0].isnan().all()
    assert torch.equal(got[1], clean[1])


def test_scores_far_apart_do_not_overflow():
    case = make_case([4], [600])
    case.query.mul_(1e3)
    got = paged_attention(*case.arguments(), scale=1.0)
    torch.testing.assert_close(got.double(), exact(case, 1.0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("block_size", "head_dim"), [(16, 64), (5, 10)])
def test_write_kv(block_size, head_dim):
    keys, values = allocate_kv(4, block_size, 3, head_dim)
    slots = torch.tensor([2 * block_size + 3, -1, 0, 4 * block_size - 1])
    key, value = torch.randn(4, 3, head_dim), torch.randn(4, 3, head_dim)
    write_kv(key, value, slots, keys, values)
    for row, (block, offset) in {0: (2, 3), 2: (0, 0), 3: (3, block_size - 1)}.items():
        assert torch.equal(keys[block, offset], key[row])
        assert torch.equal(values[block, offset], value[row])
    assert keys.count_nonzero() == values.count_nonzero() == 3 * 3 * head_dim
