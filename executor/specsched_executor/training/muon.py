"""Muon for the matrices, AdamW for the rest.

Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/) replaces the momentum of a
matrix by the nearest semi-orthogonal one, found by Newton-Schulz iterations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch

__all__ = ["Muon", "orthogonalized"]

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS: Final = 5


def orthogonalized(matrices: torch.Tensor) -> torch.Tensor:
    """U V^T of each matrix U S V^T, about: [n, rows, columns], singular values 0.7 to 1.2.

    Five iterations X <- aX + (bA + cA^2) X, A = X X^T, in bfloat16 on CUDA.
    """
    a, b, c = _COEFFICIENTS
    x: torch.Tensor = matrices.to(torch.bfloat16 if matrices.is_cuda else matrices.dtype)
    is_tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if is_tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_NUM_ITERATIONS):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = a * x + torch.bmm(b * gram + c * torch.bmm(gram, gram), x)
    x = x.transpose(1, 2) if is_tall else x
    return x.to(matrices.dtype)


class Muon:
    """Steps of lr * max(1, rows / columns)^0.5 along the orthogonalized Nesterov momentum."""

    def __init__(
        self, matrices: Mapping[str, torch.nn.Parameter], *, momentum: float = 0.95
    ) -> None:
        self._momentum = momentum
        by_shape: dict[torch.Size, list[str]] = defaultdict(list)
        for name, matrix in matrices.items():
            by_shape[matrix.shape].append(name)
        self._groups = [[matrices[name] for name in names] for names in by_shape.values()]
        self._buffers = [torch.zeros_like(torch.stack(list(group))) for group in self._groups]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update by the gradients and clear them; equal shapes are handled together."""
        for group, buffer in zip(self._groups, self._buffers, strict=True):
            gradients = torch.stack([_gradient(parameter) for parameter in group])
            buffer.lerp_(gradients, 1 - self._momentum)
            update = orthogonalized(gradients.lerp(buffer, self._momentum))
            rows, columns = update.shape[1:]
            scale = lr * max(1.0, rows / columns) ** 0.5
            torch._foreach_sub_(list[torch.Tensor](group), list((update * scale).unbind()))
            for parameter in group:
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"buffers": self._buffers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        _copy(self._buffers, state["buffers"])


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        raise ValueError("a matrix without gradient cannot be stepped")
    return parameter.grad


def _copy(targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
