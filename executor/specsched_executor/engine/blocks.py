"""Blocks of the paged KV cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["BlockPool", "num_blocks_for"]


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens`."""
    return -(-num_tokens // block_size)


class BlockPool:
    """Hands out block ids; the most recently freed first, as its memory is warm."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = num_blocks
        """Blocks nobody holds."""
        self._free = np.arange(num_blocks, dtype=np.int32)[::-1].copy()

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens`."""
        return num_blocks_for(num_tokens, self.block_size)

    def take(self, num_blocks: int) -> npt.NDArray[np.int32] | None:
        """That many blocks, or None (and nothing taken) where there are fewer."""
        if num_blocks > self.num_free:
            return None
        self.num_free -= num_blocks
        return self._free[self.num_free : self.num_free + num_blocks][::-1].copy()

    def give_back(self, block_ids: npt.NDArray[np.int32]) -> None:
        """Return blocks that `take` handed out."""
        self._free[self.num_free : self.num_free + len(block_ids)] = block_ids
        self.num_free += len(block_ids)
