"""A device that computes nothing, so that what is left of a step is the host's share of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from specsched_executor.core import KvCache, ModelBatch, ModelConfig, TargetOutput
from specsched_executor.device import DeviceParts, GraphSizes, build_device_parts, default_rows
from specsched_executor.device.drafter import ContextRows, DraftJob, NoDeviceDrafter
from specsched_executor.engine import EngineConfig

__all__ = ["idle_parts"]

NUM_ACCEPTED = 1
CONFIDENCE = 0.7


@dataclass(frozen=True)
class _NoCache:
    num_blocks: int
    block_size: int


class _NoModel:
    config = ModelConfig("none", 1, 1, 1, 1, 1, 1, 49152, 4096, 1.0, 1.0, True, None, (2,))

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> KvCache:
        return _NoCache(num_blocks, block_size)

    def forward(self, batch: ModelBatch, kv_cache: KvCache) -> TargetOutput:
        raise AssertionError("nothing runs here")


class _FullDrafter(NoDeviceDrafter):
    """Drafts as much as it is asked for."""

    name = "full"
    is_idle = False

    def take_in(self, rows: ContextRows) -> None:
        raise AssertionError("no features were asked for")

    def draft(self, job: DraftJob) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("nothing runs here")


class _NothingReplayer:
    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return _nothing

    def num_bytes(self) -> int:
        return 0


def _nothing() -> None:
    """Takes no time."""


def idle_parts(config: EngineConfig, *, drafts: bool) -> DeviceParts:
    """Every step accepts `NUM_ACCEPTED` drafts of each request that has any."""
    sizes = default_rows(config.max_num_seqs, config.max_draft_tokens, 1 << 20)
    graphs = GraphSizes.of(sizes, config.max_num_seqs, config.max_draft_tokens)
    drafter = _FullDrafter() if drafts else NoDeviceDrafter()
    parts = build_device_parts(_NoModel(), drafter, config, graphs, _NothingReplayer())
    parts.graphs.capture_all()
    step = parts.step
    inputs = step.inputs.arrays.numpy("draft_limits")
    outputs = {name: step.outputs.numpy(name) for name in step.outputs.layout.fields}
    outputs["token_ids"][:] = 17
    outputs["confidence"][:] = CONFIDENCE
    verify = parts.graphs.verify

    def verify_nothing(num_rows: int, num_requests: int, *, has_prompts: bool):  # type: ignore[no-untyped-def]
        np.minimum(inputs, NUM_ACCEPTED, out=outputs["num_accepted"])
        outputs["verify_lens"][:] = inputs
        return verify(num_rows, num_requests, has_prompts=has_prompts)

    parts.graphs.verify = verify_nothing  # type: ignore[method-assign]
    return parts
