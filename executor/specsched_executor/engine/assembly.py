"""Puts a step loop together."""

from __future__ import annotations

from typing import Protocol

from specsched_executor.core import Drafter, TargetModel
from specsched_executor.engine.blocks import BlockPool
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.delivery import Delivery
from specsched_executor.engine.drafting import Calibrations, Drafting
from specsched_executor.engine.drafts import DraftTable
from specsched_executor.engine.request_loop import RequestLoop
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.slot_columns import SlotColumns
from specsched_executor.engine.step_loop import StepLoop
from specsched_executor.engine.target_pass import TargetPass

__all__ = ["LoopParts", "build_step_loop"]


class LoopParts(Protocol):
    """What an engine on a device is made of; see `specsched_executor.device`."""

    def build_loop(
        self,
        gate: ConfidenceGate,
        config: EngineConfig,
        delivery: Delivery,
        calibrations: Calibrations = ...,
    ) -> RequestLoop:
        """The loop, once."""


def build_step_loop(
    model: TargetModel,
    drafter: Drafter,
    gate: ConfidenceGate,
    config: EngineConfig,
    delivery: Delivery,
    *,
    calibrations: Calibrations = lambda: None,
) -> StepLoop:
    """A step loop with a KV cache of its own. calibrations: what drafts are ranked by."""
    pool = BlockPool(config.num_kv_blocks, config.block_size)
    max_blocks = config.blocks_per_request(model.config.max_context_tokens)
    context_tokens = config.context_tokens(model.config.max_context_tokens)
    columns = SlotColumns(config.max_num_seqs, max_blocks, context_tokens)
    residency = Residency(pool, columns, drafter.release)
    drafts = DraftTable(config.max_num_seqs, config.max_draft_tokens)
    kv_cache = model.allocate_kv_cache(config.num_kv_blocks, config.block_size)
    return StepLoop(
        config=config,
        gate=gate,
        target_pass=TargetPass(model, kv_cache, drafts, columns, drafter.feature_layers),
        drafting=Drafting(drafter, drafts, columns, calibrations),
        residency=residency,
        columns=columns,
        pool=pool,
        delivery=delivery,
    )
