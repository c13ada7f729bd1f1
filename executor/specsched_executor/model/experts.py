"""The experts of a mixture, in the form that is best where they run."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from specsched_executor.model.feed_forward import DenseFeedForward, Gate
from specsched_executor.model.spec import MixtureSpec
from specsched_executor.model.tensor_reader import TensorReader

__all__ = ["Experts", "GroupedExperts", "LoopedExperts", "MaskedExperts", "Routing", "read_experts"]


@dataclass(frozen=True, slots=True)
class Routing:
    """experts: int64 [n, k], those of each row; weights: float32 [n, k], of their outputs."""

    experts: torch.Tensor
    weights: torch.Tensor


class Experts(Protocol):
    """All experts of a layer."""

    def __call__(self, normed: torch.Tensor, routing: Routing, gate: Gate) -> torch.Tensor:
        """Weighted sum of what the experts make of each row, float32 [n, hidden_size]."""


def read_experts(reader: TensorReader, prefix: str, hidden: int, spec: MixtureSpec) -> Experts:
    """The matrices named `prefix` and 0.gate_proj, 0.up_proj, 0.down_proj, 1.gate_proj, ..."""
    count, inner = spec.num_experts, spec.expert_size
    make_linear = reader.make_linear
    if make_linear.device.type == "cpu":
        return LoopedExperts(
            [
                DenseFeedForward.read(reader, f"{prefix}{index}.", hidden, inner)
                for index in range(count)
            ]
        )
    dtype, device = make_linear.dtype, make_linear.device
    gate_up = torch.empty((count, 2 * inner, hidden), dtype=dtype, device=device)
    down = torch.empty((count, hidden, inner), dtype=dtype, device=device)
    for index in range(count):
        name = f"{prefix}{index}."
        rows = dict.fromkeys((f"{name}gate_proj", f"{name}up_proj"), inner)
        gate_up[index].copy_(reader.stacked(rows, hidden))
        down[index].copy_(reader.stacked({f"{name}down_proj": hidden}, inner))
    kind = GroupedExperts if grouped_product_works(gate_up.device, dtype) else MaskedExperts
    return kind(gate_up, down)


class LoopedExperts:
    """One expert after the other, with the rows that chose it: for a CPU.

    A row's outputs are added in the order of the experts, so that its bits do not depend on the
    other rows.
    """

    def __init__(self, experts: list[DenseFeedForward]) -> None:
        self._experts = experts

    def __call__(self, normed: torch.Tensor, routing: Routing, gate: Gate) -> torch.Tensor:
        """See Experts."""
        total = torch.zeros_like(normed, dtype=torch.float32)
        for index in torch.unique(routing.experts).tolist():
            rows, places = (routing.experts == index).nonzero(as_tuple=True)
            output = self._experts[index](normed[rows], gate)
            total[rows] += output * routing.weights[rows, places, None]
        return total


class GroupedExperts:
    """Rows sorted by expert, then one grouped product for each matrix; shapes depend on n alone.

    gate_up: [num_experts, 2 * inner, hidden]; down: [num_experts, hidden, inner].
    """

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        self._gate_up = gate_up.transpose(1, 2)
        self._down = down.transpose(1, 2)
        self._indices = torch.arange(len(gate_up), device=gate_up.device)

    def __call__(self, normed: torch.Tensor, routing: Routing, gate: Gate) -> torch.Tensor:
        """See Experts."""
        num_rows, per_row = routing.experts.shape
        sorted_experts, order = routing.experts.flatten().sort(stable=True)
        ends = torch.searchsorted(sorted_experts, self._indices, right=True).to(torch.int32)
        inner = gate(F.grouped_mm(normed[order // per_row], self._gate_up, offs=ends))
        outputs = F.grouped_mm(inner, self._down, offs=ends)
        # Back in the order of rows by a gather: a scattered sum would add in any order.
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        by_row = outputs[places].view(num_rows, per_row, -1)
        return (by_row.float() * routing.weights[..., None]).sum(dim=1)


class MaskedExperts:
    """Every expert for every row, those not chosen with weight zero: for devices without more.

    gate_up, down: as of GroupedExperts.
    """

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        self._gate_up = gate_up
        self._down = down

    def __call__(self, normed: torch.Tensor, routing: Routing, gate: Gate) -> torch.Tensor:
        """See Experts."""
        num_rows = len(normed)
        shares = torch.zeros(num_rows, len(self._down), device=normed.device)
        shares.scatter_(1, routing.experts, routing.weights)
        total = torch.zeros_like(normed, dtype=torch.float32)
        for index, (gate_up, down) in enumerate(zip(self._gate_up, self._down, strict=True)):
            output = gate(normed @ gate_up.T) @ down.T
            total += output.float() * shares[:, index, None]
        return total


@functools.cache
def grouped_product_works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's grouped product runs there and is right, by trying it."""
    generator = torch.Generator(device).manual_seed(0)
    x, weights = (
        torch.randn(shape, generator=generator, device=device).to(dtype)
        for shape in ((4, 16), (2, 16, 16))
    )
    ends = torch.tensor([1, 4], dtype=torch.int32, device=device)
    try:
        product = F.grouped_mm(x, weights.transpose(1, 2), offs=ends)
    except (AttributeError, RuntimeError):
        return False
    expected = torch.cat((x[:1] @ weights[0].T, x[1:] @ weights[1].T))
    return bool(torch.allclose(product.float(), expected.float(), rtol=0.05, atol=0.05))
