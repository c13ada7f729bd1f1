"""Checkpoints in Hugging Face folders: config.json, *.safetensors, tokenizer.json."""

from specsched_executor.model.huggingface.checkpoint import HuggingFaceCheckpoint
from specsched_executor.model.huggingface.config import read_spec, spec_of
from specsched_executor.model.huggingface.facts import ConfigFacts

__all__ = ["ConfigFacts", "HuggingFaceCheckpoint", "read_spec", "spec_of"]
