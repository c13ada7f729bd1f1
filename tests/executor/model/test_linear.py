"""Matrix products in every layout, and what happens where packing is impossible or wrong."""

from __future__ import annotations

import pytest
import torch
from specsched_executor.model.linear import (
    LinearFactory,
    LinearLayout,
    MklLinear,
    OneDnnLinear,
    PlainLinear,
    packed_linear,
    padded_rows,
)
from specsched_executor.model.options import fastest_dtype

needs_mkl = pytest.mark.skipif(packed_linear(torch.float32) is None, reason="torch without MKL")
needs_amx = pytest.mark.skipif(fastest_dtype() != "bfloat16", reason="no matrix units")
needs_bf16 = pytest.mark.skipif(packed_linear(torch.bfloat16) is None, reason="no bfloat16")


@needs_mkl
@pytest.mark.parametrize("shape", [(1, 1), (99, 17), (576, 1536), (960, 576)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_packed_product(shape, has_bias):
    weight = torch.randn(shape)
    bias = torch.randn(shape[0]) if has_bias else None
    packed = MklLinear(weight, bias)
    for rows in (0, 1, 2, 7, 64, 65, 129):
        x = torch.randn(rows, shape[1])
        exact = torch.nn.functional.linear(
            x.double(), weight.double(), None if bias is None else bias.double()
        )
        torch.testing.assert_close(packed(x).double(), exact, rtol=1e-4, atol=1e-3)


@needs_mkl
@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (3072, 576), (64, 32), (128, 96)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(shape):
    packed = MklLinear(torch.randn(shape), None)
    x = torch.randn(130, shape[1])
    together = packed(x)
    for rows in (1, 2, 3, 4, 5, 8, 16, 17, 33, 64, 100, 129):
        assert torch.equal(packed(x[:rows].contiguous()), together[:rows])


@needs_amx
@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (3072, 576)])
def test_a_bfloat16_row_has_the_same_bits_among_any_number_of_rows(shape):
    packed = OneDnnLinear((torch.randn(shape) * 0.05).bfloat16(), None)
    x = torch.randn(512, shape[1])
    together = packed(x)
    for rows in (*range(1, 34), 64, 100, 129, 200, 256, 511):
        assert torch.equal(packed(x[:rows].contiguous()), together[:rows])


@needs_bf16
@pytest.mark.parametrize("columns", [64, 1024, 1025, 2100])
@pytest.mark.parametrize("has_bias", [True, False])
def test_bfloat16_product(has_bias, columns):
    weight = (torch.randn(99, columns) / columns**0.5).bfloat16()
    bias = torch.randn(99).bfloat16() if has_bias else None
    packed = OneDnnLinear(weight, bias)
    for rows in (0, 1, 7, 33, 130):
        x = torch.randn(rows, columns)
        expected = PlainLinear(weight, bias)(x)
        assert packed(x).dtype == torch.float32
        torch.testing.assert_close(packed(x), expected, rtol=2e-2, atol=0.1)


def test_few_numbers_of_rows_are_multiplied_and_few_are_added():
    padded = [padded_rows(rows) for rows in range(2049)]
    assert len(set(padded)) < 64
    assert padded == sorted(padded)
    for rows, wider in enumerate(padded):
        assert rows <= wider <= max(8, rows * 2)
        assert padded_rows(wider) == wider


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_packs_where_it_can(dtype):
    linear = LinearFactory(LinearLayout.AUTO, dtype)(torch.randn(8, 4))
    assert isinstance(linear, packed_linear(dtype) or PlainLinear)
    plain = LinearFactory(LinearLayout.PLAIN, dtype)(torch.randn(8, 4))
    assert isinstance(plain, PlainLinear)


def test_packed_is_an_error_where_it_cannot_be():
    factory = LinearFactory(LinearLayout.PACKED, torch.float16)
    with pytest.raises(ValueError, match=r"'packed' is not possible for torch\.float16"):
        factory(torch.randn(8, 4))


@needs_mkl
@pytest.mark.parametrize("layout", [LinearLayout.AUTO, LinearLayout.PACKED])
def test_a_packed_product_that_is_wrong_is_not_used(monkeypatch, layout):
    monkeypatch.setattr(MklLinear, "__call__", lambda self, x: x.new_zeros(len(x), 8))
    weight = torch.randn(8, 4)
    factory = LinearFactory(layout, torch.float32)
    if layout is LinearLayout.PACKED:
        with pytest.raises(ValueError, match="does not give the plain product"):
            factory(weight)
        return
    linear = factory(weight)
    x = torch.randn(3, 4)
    torch.testing.assert_close(linear(x), x @ weight.T)


@pytest.mark.parametrize("layout", [LinearLayout.AUTO, LinearLayout.PLAIN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copy_survives_the_reuse_of_the_memory(layout, dtype):
    scratch = torch.randn(8, 4)
    x, expected = torch.ones(1, 4), scratch.clone().sum(dim=1)
    linear = LinearFactory(layout, dtype)(scratch, copy=True)
    scratch.zero_()
    torch.testing.assert_close(linear(x)[0], expected, rtol=0.05, atol=0.05)
