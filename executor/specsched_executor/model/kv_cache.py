"""The paged key-value cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from specsched_kernels.paged_attention import allocate_kv, storage_arrays

LayerArrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class PagedKvCache:
    """Keys and values of every layer; each [num_blocks, block_size, num_kv_heads, head_dim].

    storage: the same memory as the CPU kernels take it, per layer; None where they cannot.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    storage: tuple[LayerArrays, ...] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        arrays: list[Any] = [
            storage_arrays(keys, values)
            for keys, values in zip(self.keys, self.values, strict=True)
        ]
        object.__setattr__(self, "storage", None if None in arrays else tuple(arrays))

    @classmethod
    def allocate(
        cls, num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> PagedKvCache:
        """A zeroed cache; ValueError unless there is at least one block of at least one token."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError(
                f"a KV cache of {num_blocks} blocks of {block_size} tokens; both must be at least 1"
            )
        layers = [
            allocate_kv(num_blocks, block_size, num_kv_heads, head_dim) for _ in range(num_layers)
        ]
        return cls(tuple(keys for keys, _ in layers), tuple(values for _, values in layers))

    @classmethod
    def allocate_on_device(
        cls,
        num_layers: int,
        shape: tuple[int, int, int, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> PagedKvCache:
        """A zeroed cache in the layout of the device kernels, dense; `shape` is a layer's."""
        keys, values = (
            tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers))
            for _ in range(2)
        )
        return cls(keys, values)

    @property
    def num_blocks(self) -> int:
        """Blocks a request's block table may name."""
        return self.keys[0].shape[0]

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.keys[0].shape[1]

    @property
    def num_bytes(self) -> int:
        """Memory of all layers."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))
