"""Reading a checkpoint's tensors into the linears of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from specsched_executor.model.checkpoint import Checkpoint
from specsched_executor.model.linear import Linear, LinearFactory

__all__ = ["TensorReader"]

Arrange = Callable[[torch.Tensor], torch.Tensor]


class TensorReader:
    """Reads matrices through one scratch buffer, fusing what is multiplied with the same input.

    Fresh memory for each would cost more in page faults than the reading itself.
    """

    def __init__(self, checkpoint: Checkpoint, make_linear: LinearFactory) -> None:
        self._checkpoint = checkpoint
        self.make_linear = make_linear
        self._scratch = torch.empty(0, device=make_linear.device)

    def vector(self, name: str, size: int) -> torch.Tensor:
        """float32 [size]."""
        out = torch.empty(size, device=self.make_linear.device)
        return self._checkpoint.tensor(name, out)

    def norm(self, name: str, size: int) -> torch.Tensor:
        """The weights of a norm, float32 [size]."""
        return self.vector(f"{name}.weight", size)

    def stacked(
        self, rows: Mapping[str, int], columns: int, arrange: Mapping[str, Arrange] | None = None
    ) -> torch.Tensor:
        """float32 [sum of rows, columns], the named matrices stacked; `rows` gives those of each.

        arrange: what is made of the rows of some. Valid until the next matrix is read.
        """
        total = sum(rows.values())
        if self._scratch.numel() < total * columns:
            self._scratch = torch.empty(total * columns, device=self.make_linear.device)
        weight = self._scratch[: total * columns].view(total, columns)
        start = 0
        for name, size in rows.items():
            part = weight[start : start + size]
            self._checkpoint.tensor(f"{name}.weight", part)
            if arrange and name in arrange:
                part.copy_(arrange[name](part))
            start += size
        return weight

    def fused(
        self,
        rows: Mapping[str, int],
        columns: int,
        *,
        has_bias: bool = False,
        arrange: Mapping[str, Arrange] | None = None,
    ) -> Linear:
        """One linear of the named matrices, see `stacked`."""
        weight = self.stacked(rows, columns, arrange)
        if not has_bias:
            return self.make_linear(weight, copy=True)
        bias = torch.empty(len(weight), device=weight.device)
        for name, part in zip(rows, torch.split(bias, list(rows.values())), strict=True):
            self._checkpoint.tensor(f"{name}.bias", part)
        return self.make_linear(weight, bias, copy=True)
