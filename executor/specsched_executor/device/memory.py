"""Device memory that an engine needs, asked before it is taken."""

from __future__ import annotations

from dataclasses import dataclass

from specsched_executor.core import ModelConfig
from specsched_executor.device.assembly import device_sizes
from specsched_executor.device.slot_rules import rule_sizes
from specsched_executor.engine.config import EngineConfig

__all__ = ["MemoryPlan", "blocks_that_fit", "plan_memory"]

_GIB = 1 << 30
_KV_SHARE = 0.8
"""Of what is free beside the tables: the rest is for graphs, logits and the libraries."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one KV block in all layers, and of two tables by slot: the distributions that drafts
    are drawn from, the rules on logits with the tokens they look at.
    """

    block_bytes: int
    draft_bytes: int
    rule_bytes: int

    @property
    def table_bytes(self) -> int:
        """Of both tables."""
        return self.draft_bytes + self.rule_bytes

    def check(self, num_kv_blocks: int, free_bytes: int) -> None:
        """Raise ValueError, saying how much is missing and which option lowers it."""
        kv_bytes = num_kv_blocks * self.block_bytes
        missing = kv_bytes + self.table_bytes - free_bytes
        if missing <= 0:
            return
        fitting = blocks_that_fit(self, free_bytes)
        remedy = (
            f"lower num_kv_blocks to at most {fitting}" if fitting > 0 else "lower max_num_seqs"
        )
        raise ValueError(
            f"num_kv_blocks = {num_kv_blocks} needs {kv_bytes / _GIB:.2f} GiB on the GPU, drafts"
            f" {self.draft_bytes / _GIB:.2f} GiB, rules on logits {self.rule_bytes / _GIB:.2f} GiB,"
            f" and {free_bytes / _GIB:.2f} GiB are free: {missing / _GIB:.2f} GiB are missing;"
            f" {remedy}"
        )


def plan_memory(
    model: ModelConfig, block_bytes: int, config: EngineConfig, *, draws_drafts: bool
) -> MemoryPlan:
    """block_bytes: of one KV block in all layers. draws_drafts: whether a distribution is kept for
    each draft of each slot.
    """
    num_slots, draft_words = config.max_num_seqs, config.max_draft_tokens * model.vocab_size
    rule_words = rule_sizes(device_sizes(config, model), model).row_width
    return MemoryPlan(
        block_bytes,
        draft_bytes=4 * num_slots * draft_words if draws_drafts else 0,
        rule_bytes=4 * num_slots * rule_words,
    )


def blocks_that_fit(plan: MemoryPlan, free_bytes: int) -> int:
    """Most KV blocks that leave room for the rest; 0 or less where nothing fits."""
    return int((free_bytes - plan.table_bytes) * _KV_SHARE) // plan.block_bytes
