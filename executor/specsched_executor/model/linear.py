"""Matrix products of the model, in the memory layout that is fastest for few rows.

A verification step multiplies 1 to a few hundred rows. On a CPU torch's own `F.linear` repacks the
weights in every call and changes its algorithm between 3 and 4 rows; weights packed once for MKL
are read at memory speed from one row on and give every row the same bits however many run beside
it (docs of cblas_gemm_pack; measured by tests/bench/test_bench_model.py).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, Protocol

import torch
import torch.nn.functional as F


class LinearLayout(enum.StrEnum):
    """How weights lie in memory: `auto` packs where that is possible and checked."""

    AUTO = "auto"
    PACKED = "packed"
    PLAIN = "plain"


class Linear(Protocol):
    """A matrix product of the model."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T + b: float32 [n, in_features], contiguous -> float32 [n, out_features]."""


class PlainLinear:
    """torch's own product, in the dtype of the weights."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        return F.linear(x.to(self._weight.dtype), self._weight, self._bias).float()


class MklLinear:
    """float32 weights packed for MKL; the originals are not kept."""

    _PACKED_ROWS: Final = 64
    """Row count MKL tunes the packing for; 64 was best at every count from 1 to 128."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = _mkl_op("_mkl_reorder_linear_weight")(weight, self._PACKED_ROWS)
        # The op reads only the shape of the original when told that the row count is the packed
        # one. NaN would show at once if it ever read more.
        self._shape = torch.full((1, 1), float("nan")).expand(weight.shape)
        self._bias = bias
        self._multiply = _mkl_op("_mkl_linear")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        product: torch.Tensor = self._multiply(x, self._packed, self._shape, self._bias, x.shape[0])
        return product


class LinearFactory:
    """Makes the linears of one model and remembers which layouts proved right.

    A packed layout relies on private operators of torch, so its product is compared with the plain
    one for every new weight shape; a missing operator or a wrong product means the plain layout,
    or an error where `packed` was asked for.
    """

    _CHECKED_ROWS: Final = (1, 5)

    def __init__(self, layout: LinearLayout, dtype: torch.dtype) -> None:
        self._layout = layout
        self.dtype = dtype
        self._checked: dict[tuple[int, ...], bool] = {}

    def __call__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, copy: bool = False
    ) -> Linear:
        """A linear of these weights; `copy` when the caller will reuse their memory."""
        weight, shared = weight.to(self.dtype), weight.dtype == self.dtype
        bias = None if bias is None else bias.to(self.dtype)
        if self._layout is not LinearLayout.PLAIN and self._packable(weight):
            packed = MklLinear(weight, bias)
            if self._is_right(packed, weight, bias):
                return packed
            if self._layout is LinearLayout.PACKED:
                raise ValueError(
                    "linear layout 'packed' does not reproduce the plain product with torch "
                    f"{torch.__version__}; accepted here: auto, plain"
                )
        return PlainLinear(weight.clone() if copy and shared else weight, bias)

    def _packable(self, weight: torch.Tensor) -> bool:
        fits = weight.device.type == "cpu" and weight.dtype == torch.float32 and mkl_available()
        if not fits and self._layout is LinearLayout.PACKED:
            raise ValueError(
                f"linear layout 'packed' needs float32 on a CPU and a torch with MKL, "
                f"not {weight.dtype} on {weight.device}; accepted here: auto, plain"
            )
        return fits

    def _is_right(self, packed: Linear, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        shape = tuple(weight.shape)
        if shape not in self._checked:
            plain = PlainLinear(weight, bias)
            inputs = [torch.randn(rows, shape[1]) for rows in self._CHECKED_ROWS]
            self._checked[shape] = all(
                torch.allclose(packed(x), plain(x), rtol=1e-3, atol=1e-3) for x in inputs
            )
        return self._checked[shape]


def mkl_available() -> bool:
    """Whether this torch can pack weights for MKL."""
    names = ("_mkl_linear", "_mkl_reorder_linear_weight")
    return all(hasattr(torch.ops.mkl, name) for name in names)


def _mkl_op(name: str) -> Callable[..., torch.Tensor]:
    operator: Callable[..., torch.Tensor] = getattr(torch.ops.mkl, name)
    return operator
