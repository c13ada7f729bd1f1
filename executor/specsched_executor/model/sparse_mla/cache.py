"""The paged caches of sparse latent attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from specsched_kernels.indexer_logits import KEY_BLOCK_SIZE, KEY_BYTES

__all__ = ["LatentKvCache", "latent_block_bytes"]


@dataclass(frozen=True, slots=True)
class LatentKvCache:
    """What tokens leave in each layer: an entry for all heads, and a key for the indexer.

    latents: [num_blocks, 64, entry_dim] each; index_keys: uint8 [num_blocks, 64, 132] each, see
    `specsched_kernels.indexer_logits`.
    """

    latents: tuple[torch.Tensor, ...]
    index_keys: tuple[torch.Tensor, ...]

    @classmethod
    def allocate(
        cls,
        num_layers: int,
        num_blocks: int,
        entry_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> LatentKvCache:
        """Zeroed; ValueError unless there is at least one block."""
        if num_blocks < 1:
            raise ValueError(f"a latent cache of {num_blocks} blocks; there must be at least 1")
        layers = range(num_layers)
        shape = (num_blocks, KEY_BLOCK_SIZE)
        return cls(
            tuple(torch.zeros(*shape, entry_dim, dtype=dtype, device=device) for _ in layers),
            tuple(torch.zeros(*shape, KEY_BYTES, dtype=torch.uint8, device=device) for _ in layers),
        )

    @property
    def num_blocks(self) -> int:
        """Blocks a request's block table may name."""
        return self.latents[0].shape[0]

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return KEY_BLOCK_SIZE

    @property
    def num_bytes(self) -> int:
        """Memory of all layers."""
        return sum(tensor.nbytes for tensor in (*self.latents, *self.index_keys))


def latent_block_bytes(num_layers: int, entry_dim: int, dtype: torch.dtype) -> int:
    """Memory of one block in all layers."""
    return num_layers * KEY_BLOCK_SIZE * (entry_dim * dtype.itemsize + KEY_BYTES)
