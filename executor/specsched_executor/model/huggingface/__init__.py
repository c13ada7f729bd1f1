"""Checkpoints in Hugging Face folders: config.json, *.safetensors, tokenizer.json."""

from specsched_executor.model.huggingface.checkpoint import HuggingFaceCheckpoint

__all__ = ["HuggingFaceCheckpoint"]
