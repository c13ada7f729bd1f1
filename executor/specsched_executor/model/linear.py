"""Matrix products of the model, in the memory layout that is fastest for few rows.

A verification step multiplies 1 to a few hundred rows. On a CPU torch's own `F.linear` repacks the
weights in every call and changes its algorithm between 3 and 4 rows; weights packed once are read
at memory speed from one row on. Packed for MKL, a row also gets the same bits however many rows
run beside it, so that greedy output cannot depend on what is verified together (measured by
tests/bench/test_bench_model.py, held by tests/executor/model/test_linear.py).
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


class DeviceLinear:
    """On a device: inputs and outputs in the dtype of the weights, nothing converted.

    `widens`: the product comes out in float32, as logits are wanted.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, widens: bool = False
    ) -> None:
        self._weight = weight
        self._bias = bias
        self._widens = widens and weight.dtype != torch.float32

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T + b: [n, in_features] -> [n, out_features]."""
        if not self._widens:
            return F.linear(x, self._weight, self._bias)
        if x.is_cuda and self._bias is None:
            return torch.mm(x, self._weight.T, out_dtype=torch.float32)
        return F.linear(x, self._weight, self._bias).float()


class MklLinear:
    """float32 weights packed for MKL; the originals are not kept."""

    _PACKED_ROWS: Final = 64
    """Row count MKL tunes the packing for; 64 was best at every count from 1 to 128."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = _operator("mkl", "_mkl_reorder_linear_weight")(weight, self._PACKED_ROWS)
        # The op reads only the shape of the original when told that the row count is the packed
        # one. NaN would show at once if it ever read more.
        self._shape = torch.full((1, 1), float("nan")).expand(weight.shape)
        self._bias = bias
        self._multiply = _operator("mkl", "_mkl_linear")
        # Of some small matrices a single row would get other bits than among others.
        pair = torch.linspace(-1.0, 1.0, 2 * weight.shape[1]).view(2, -1)
        self._doubles_one = not torch.equal(self._product(pair[:1]), self._product(pair)[:1])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        if self._doubles_one and x.shape[0] == 1:
            return self._product(x.repeat(2, 1))[:1]
        return self._product(x)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x, self._packed, self._shape, self._bias, x.shape[0])


class OneDnnLinear:
    """bfloat16 weights packed for oneDNN; the originals are not kept.

    Half the memory traffic, and matrix units where the CPU has them: 1.4 to 2.4 times as fast as
    float32. Sums are float32, inputs and outputs are rounded to bfloat16. Of wide matrices oneDNN
    sums in an order that depends on the row count (seen with 1536 columns, not with 1152), so those
    are parted: a row then gets the same bits among any number of rows here too.

    For each shape of weights and number of rows oneDNN keeps compiled code, 0.6 MB of it and some
    20 ms to make, for 1024 of them. So rows are padded: there are few numbers of rows then.
    """

    _PACKED_ROWS: Final = 1
    """With larger hints the order of the sums changes at 33 rows too, for 10 % more speed."""
    _MAX_COLUMNS: Final = 1024

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        pack = _operator("mkldnn", "_reorder_linear_weight")
        parts = weight.tensor_split(max(1, -(-weight.shape[1] // self._MAX_COLUMNS)), dim=1)
        self._parts = [pack(part.contiguous(), self._PACKED_ROWS) for part in parts]
        self._widths = [part.shape[1] for part in parts]
        self._bias = bias
        self._multiply = _operator("mkldnn", "_linear_pointwise")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        num_rows = x.shape[0]
        total: torch.Tensor | None = None
        for columns, part in zip(torch.split(x, self._widths, dim=1), self._parts, strict=True):
            bias = self._bias if total is None else None
            inputs = _padded_bfloat16(columns, padded_rows(num_rows))
            product = self._multiply(inputs, part, bias, "none", [], "")[:num_rows]
            total = product.float() if total is None else total.add_(product)
        return x if total is None else total


def padded_rows(num_rows: int) -> int:
    """Rows that oneDNN multiplies: up to 8 as they are, to 64 by 8, to 256 by 16, then by 64.

    Its kernels work on tiles of up to 16 rows, so that the rows that are added cost little.
    """
    step = 1 if num_rows <= 8 else 8 if num_rows <= 64 else 16 if num_rows <= 256 else 64
    return -(-num_rows // step) * step


def _padded_bfloat16(x: torch.Tensor, num_rows: int) -> torch.Tensor:
    if x.shape[0] == num_rows:
        return x.bfloat16()
    padded = x.new_zeros(num_rows, x.shape[1], dtype=torch.bfloat16)
    padded[: x.shape[0]] = x
    return padded


class LinearFactory:
    """Makes the linears of one model and remembers which layouts proved right.

    A packed layout relies on private operators of torch, so its product is compared with the plain
    one for every new weight shape; a missing operator or a wrong product means the plain layout,
    or ValueError where `packed` was asked for.
    """

    _CHECKED_ROWS: Final = (1, 5)
    _MAX_RELATIVE_ERROR: Final = {torch.float32: 1e-4, torch.bfloat16: 2e-2}

    def __init__(
        self, layout: LinearLayout, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self._layout = layout
        self.dtype = dtype
        self.device = torch.device(device)
        self._checked: dict[tuple[int, ...], bool] = {}

    def __call__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, copy: bool = False
    ) -> Linear:
        """A linear of these weights; `copy` when the caller will reuse their memory."""
        if self.device.type != "cpu":
            bias = None if bias is None else bias.to(self.device, self.dtype)
            return DeviceLinear(weight.to(self.device, self.dtype, copy=copy), bias)
        weight, shared = weight.to(self.dtype), weight.dtype == self.dtype
        bias = None if bias is None else bias.to(self.dtype)
        packed = self._pack(weight, bias)
        if packed is not None:
            return packed
        return PlainLinear(weight.clone() if copy and shared else weight, bias)

    def head(self, weight: torch.Tensor) -> Linear:
        """The linear that gives logits: float32, whatever the weights are."""
        if self.device.type == "cpu":
            return self(weight)
        return DeviceLinear(weight.to(self.device, self.dtype), widens=True)

    def _pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear | None:
        if self._layout is LinearLayout.PLAIN:
            return None
        kind = packed_linear(self.dtype) if weight.device.type == "cpu" else None
        if kind is not None:
            packed = kind(weight, bias)
            if self._is_right(packed, weight, bias):
                return packed
        if self._layout is LinearLayout.PACKED:
            reason = "is not possible" if kind is None else "does not give the plain product"
            raise ValueError(
                f"linear layout 'packed' {reason} for {weight.dtype} on {weight.device} with torch "
                f"{torch.__version__}; accepted here: auto, plain"
            )
        return None

    def _is_right(self, packed: Linear, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        shape = tuple(weight.shape)
        if shape not in self._checked:
            plain = PlainLinear(weight, bias)
            inputs = [torch.randn(rows, shape[1]) for rows in self._CHECKED_ROWS]
            errors = [(packed(x) - plain(x)).norm() / plain(x).norm() for x in inputs]
            bound = self._MAX_RELATIVE_ERROR[weight.dtype]
            self._checked[shape] = all(bool(error <= bound) for error in errors)
        return self._checked[shape]


def packed_linear(dtype: torch.dtype) -> type[MklLinear | OneDnnLinear] | None:
    """The packed layout for this dtype on this machine's CPU; None where there is none."""
    if dtype == torch.float32 and _has("mkl", "_mkl_reorder_linear_weight", "_mkl_linear"):
        return MklLinear
    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    if dtype == torch.bfloat16 and _has("mkldnn", *names):
        return OneDnnLinear if _operator("mkldnn", names[-1])() else None
    return None


def _has(namespace: str, *names: str) -> bool:
    return all(hasattr(getattr(torch.ops, namespace), name) for name in names)


def _operator(namespace: str, name: str) -> Callable[..., torch.Tensor]:
    operator: Callable[..., torch.Tensor] = getattr(getattr(torch.ops, namespace), name)
    return operator
