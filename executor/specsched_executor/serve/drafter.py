"""The drafter that the options ask for."""

from __future__ import annotations

from specsched_executor.config import ExecutorConfig
from specsched_executor.core import Drafter
from specsched_executor.drafters import DrafterSetting, create_drafter
from specsched_executor.engine import EngineConfig
from specsched_executor.model import LoadedModel

__all__ = ["build_drafter"]


def build_drafter(config: ExecutorConfig, loaded: LoadedModel, sizes: EngineConfig) -> Drafter:
    """A new one. Raises ValueError for a checkpoint that does not fit the model."""
    setting = None
    if config.drafter_checkpoint is not None:
        setting = DrafterSetting(
            config.drafter_checkpoint,
            loaded.model,
            num_slots=sizes.max_num_seqs,
            max_context_tokens=sizes.max_context_tokens,
        )
    return create_drafter(config.drafter, config.max_draft_tokens, setting)
