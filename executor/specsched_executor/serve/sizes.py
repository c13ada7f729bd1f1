"""Sizes that follow from the options and the model."""

from __future__ import annotations

from specsched_executor.config import ExecutorConfig
from specsched_executor.core import ModelConfig
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.fallback import FallbackPolicy

__all__ = ["engine_config"]

_DEFAULT_KV_TOKENS = 32_768
"""KV cache positions unless told otherwise: 1.4 GiB of float32 for SmolLM2-135M."""


def engine_config(config: ExecutorConfig, model: ModelConfig) -> EngineConfig:
    """Sizes of the engine. Raises ValueError for options that this model makes impossible."""
    block_size = _block_size(config, model)
    context = config.max_context_tokens or model.max_context_tokens
    return EngineConfig(
        num_kv_blocks=config.num_kv_blocks or _default_kv_blocks(config, context, block_size),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_draft_tokens=0 if config.drafter == "none" else config.max_draft_tokens,
        block_size=block_size,
        max_context_tokens=context,
        fallback=FallbackPolicy.parse(config.fallback),
        has_recorded_outcomes=config.acceptance_trace is not None,
    )


def _default_kv_blocks(config: ExecutorConfig, context: int, block_size: int) -> int:
    """Room for all requests at full context, at most _DEFAULT_KV_TOKENS, at least one request."""
    tokens = max(context, min(config.max_num_seqs * context, _DEFAULT_KV_TOKENS))
    return -(-tokens // block_size)


def _block_size(config: ExecutorConfig, model: ModelConfig) -> int:
    """As the model takes it, else as the options say."""
    needed = model.kv_block_size or config.block_size
    if needed != config.block_size and "block_size" in config.model_fields_set:
        raise ValueError(
            f"block_size = {config.block_size} cannot be had with {model.name}; accepted: {needed}"
        )
    return needed
