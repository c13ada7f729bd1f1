"""Checks of tensor arguments; metadata only, so that nothing waits for a device."""

from __future__ import annotations

import torch

__all__ = ["check_cuda_layout", "check_rows", "check_tensor"]


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int, ...],
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Raise ValueError, naming the argument, unless shape, dtype, device are as accepted."""
    accepted = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; accepted: {shape}")
    if tensor.dtype not in accepted:
        wanted = " or ".join(str(dtype) for dtype in accepted)
        raise ValueError(f"{name} is {tensor.dtype}; accepted: {wanted}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}; accepted: {device}, as the others")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has strides {tensor.stride()}; accepted: a contiguous tensor")


def check_rows(
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int, ...],
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """As `check_tensor`, of rows that are contiguous each, at any distance from one another."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; accepted: {shape}")
    row = torch.empty(shape[1:], device="meta")
    if tensor.stride()[1:] != row.stride():
        raise ValueError(f"{name} has strides {tensor.stride()}; accepted: contiguous rows")
    check_tensor(name, tensor[:1], (min(shape[0], 1), *shape[1:]), dtypes, device)


def check_cuda_layout(key_cache: torch.Tensor, value_cache: torch.Tensor) -> None:
    """Raise ValueError unless both caches have the same strides, dense in the last two."""
    head_dim = key_cache.shape[3]
    strides = key_cache.stride()
    if value_cache.stride() != strides or strides[2:] != (head_dim, 1):
        raise ValueError(
            f"key_cache has strides {strides}, value_cache {value_cache.stride()}; "
            f"accepted on CUDA: the same, ending in ({head_dim}, 1)"
        )
