"""Blocks of the paged KV cache."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BlockPool"]


class BlockPool:
    """Hands out block ids; the most recently freed first, as its memory is warm."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(reversed(range(num_blocks)))

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def take(self, num_blocks: int) -> list[int] | None:
        """That many blocks, or None (and nothing taken) where there are fewer."""
        if num_blocks > len(self._free):
            return None
        return [self._free.pop() for _ in range(num_blocks)]

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Return blocks that `take` handed out."""
        self._free.extend(block_ids)
