"""What can be wrong with a drafter's checkpoint."""

from __future__ import annotations

__all__ = ["DrafterCheckpointError"]


class DrafterCheckpointError(ValueError):
    """A checkpoint that cannot be served; the message names file, field or tensors."""
