"""The end of an engine, as whoever submits requests is told of it. Loads no torch."""

from __future__ import annotations

__all__ = ["EngineStoppedError"]


class EngineStoppedError(RuntimeError):
    """A request came after the engine had stopped."""
