"""What is profiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_STEPS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def default_sizes(
    max_requests: int, max_draft_tokens: int, max_batched_tokens: int
) -> tuple[int, ...]:
    """Row counts worth profiling.

    About three per doubling, up to the rows of a full verification of all requests; beyond, where
    only prefill chunks reach, one per doubling up to the most rows of a step.
    """
    full = min(max_requests * (max_draft_tokens + 1), max_batched_tokens)
    dense = [size for size in _STEPS if size < full]
    tail = []
    size = 2 * full
    while size < max_batched_tokens:
        tail.append(size)
        size *= 2
    return tuple(sorted({*dense, full, *tail, max_batched_tokens}))


def draft_lengths(max_draft_tokens: int) -> tuple[int, ...]:
    """Lengths of drafts worth profiling, rising: full ones, and ever half as long, rounded up."""
    lengths = [max_draft_tokens]
    while lengths[-1] > 1:
        lengths.append(-(-lengths[-1] // 2))
    return tuple(reversed(lengths))


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Sizes and effort of a profile.

    sizes: rows, rising. max_requests, max_draft_tokens: limits of the steps to imitate.
    context_tokens: context of each request at every size; long_context_tokens: the second context
    that the slope is fitted with. block_size: of the KV cache, in tokens. Every size is timed
    min_rounds times, and further up to max_rounds while less than max_seconds have passed. Where
    fewer than min_rounds samples of a size were undisturbed, others are taken again, for at most
    max_retake_seconds. ValueError names what does not fit together.
    """

    sizes: tuple[int, ...]
    max_requests: int = 16
    max_draft_tokens: int = 7
    context_tokens: int = 256
    long_context_tokens: int = 1024
    block_size: int = 16
    min_rounds: int = 3
    max_rounds: int = 9
    max_seconds: float = 10.0
    max_retake_seconds: float = 30.0
    capture_limit: int = 0

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError(f"sizes {self.sizes}: must be positive, rising and at least one")
        if not 1 <= self.min_rounds <= self.max_rounds:
            raise ValueError(
                f"min_rounds {self.min_rounds} and max_rounds {self.max_rounds}: 1 <= min <= max"
            )
        if not 1 <= self.context_tokens < self.long_context_tokens:
            raise ValueError(
                f"context_tokens {self.context_tokens} must be positive and below "
                f"long_context_tokens {self.long_context_tokens}"
            )
        for name in ("max_requests", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; must be at least 1")
