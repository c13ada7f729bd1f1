"""Operators of the executor: launchers that pick device code (Triton) or the torch reference."""

from __future__ import annotations

from specsched_kernels.allocate_verify_lens import (
    MAX_DRAFT_TOKENS,
    MAX_REQUESTS,
    VerifyAllocation,
    allocate_verify_lens,
)

__all__ = ["MAX_DRAFT_TOKENS", "MAX_REQUESTS", "VerifyAllocation", "allocate_verify_lens"]
