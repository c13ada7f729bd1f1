"""How deep a search over requests is unrolled."""

from __future__ import annotations

from typing import Final

__all__ = ["search_depth"]

_DEPTHS: Final = (4, 8, 11)


def search_depth(num_requests: int) -> int:
    """Halvings that find one of `num_requests`, or a few more, which change nothing.

    Three depths instead of one per power of two: each is compiled anew.
    """
    needed = num_requests.bit_length()
    return next((depth for depth in _DEPTHS if depth >= needed), needed)
