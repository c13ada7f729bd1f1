"""Checkpoints in the GGUF container of llama.cpp."""

from specsched_executor.model.gguf.checkpoint import GgufCheckpoint

__all__ = ["GgufCheckpoint"]
