"""The paged key-value cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PagedKvCache:
    """Keys and values of every layer; each [num_blocks, block_size, num_kv_heads, head_dim].

    On a CPU the keys of a block are stored dimension by dimension (the tensor is a transposed view),
    so that one vector register holds the same dimension of several tokens and a dot product needs
    no sum across lanes.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

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
