"""The drafter that the options ask for."""

from __future__ import annotations

from specsched_protocol.v1 import scheduler_pb2

from specsched_executor.calibration import read_checkpoint_calibration
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import Drafter, ModelConfig
from specsched_executor.drafters import DrafterSetting, create_drafter
from specsched_executor.drafters.shipped import shipped_checkpoint
from specsched_executor.engine import EngineConfig
from specsched_executor.model import LoadedModel

__all__ = ["build_drafter", "choose_drafter", "drafter_calibration"]


def choose_drafter(config: ExecutorConfig, target: ModelConfig) -> ExecutorConfig:
    """`config` with the drafter it means for this model: never "auto", dspark with its checkpoint.

    Raises ValueError where dspark is asked for and no checkpoint is given or ships for the model.
    """
    if config.drafter in {"none", "ngram"}:
        return config
    checkpoint = config.drafter_checkpoint or shipped_checkpoint(target)
    if checkpoint is None and config.drafter == "dspark":
        raise ValueError(
            f"drafter = dspark needs drafter_checkpoint: none ships for model {target.name!r}"
        )
    drafter = "ngram" if checkpoint is None else "dspark"
    return config.model_copy(update={"drafter": drafter, "drafter_checkpoint": checkpoint})


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


def drafter_calibration(config: ExecutorConfig) -> scheduler_pb2.Calibration:
    """What lies beside the checkpoint; empty where nothing does. Raises ValueError naming it."""
    if config.drafter_checkpoint is None:
        return scheduler_pb2.Calibration()
    return read_checkpoint_calibration(config.drafter_checkpoint, config.max_draft_tokens)
