"""Brings a model onto a GPU with all that its steps need."""

from __future__ import annotations

from dataclasses import replace

import structlog
import torch

from specsched_executor.config import ExecutorConfig
from specsched_executor.core import Drafter
from specsched_executor.device import (
    DeviceDrafter,
    DeviceParts,
    GraphSizes,
    build_device_parts,
    default_rows,
    parse_rows,
)
from specsched_executor.device.dspark import DeviceDSpark
from specsched_executor.device.memory import MemoryPlan, blocks_that_fit, plan_memory
from specsched_executor.device.recorded import RecordedDrafter
from specsched_executor.drafters.acceptance_trace import read_acceptance_trace
from specsched_executor.drafters.dspark import load_checkpoint
from specsched_executor.engine import EngineConfig
from specsched_executor.model import LoadedModel

from .drafter import build_drafter
from .progress import progress_bar

__all__ = ["build_parts", "device_engine_config", "graph_sizes"]

_log = structlog.get_logger(__name__)


def graph_sizes(config: ExecutorConfig, *, max_draft_tokens: int) -> GraphSizes:
    """What is captured: what the options say, else the default grid; nothing in eager mode.

    Raises ValueError for a list of sizes that is empty, does not rise or is too small.
    """
    if config.enforce_eager:
        return GraphSizes()
    most = config.max_num_batched_tokens
    if config.capture_sizes:
        rows = parse_rows(config.capture_sizes, config.max_num_seqs, most)
    else:
        rows = default_rows(config.max_num_seqs, max_draft_tokens, most)
    return GraphSizes.of(rows, config.max_num_seqs, max_draft_tokens)


def device_engine_config(
    config: ExecutorConfig, loaded: LoadedModel, sizes: EngineConfig, free_bytes: int
) -> EngineConfig:
    """`sizes` with KV blocks for all requests at full context as far as they fit, unless given.

    free_bytes: of the GPU, the model being there. Raises ValueError saying how much is missing.
    """
    plan = _memory(config, loaded, sizes)
    if config.num_kv_blocks is None:
        context = sizes.max_context_tokens or loaded.config.max_context_tokens
        per_request = -(-context // sizes.block_size)
        wanted = sizes.max_num_seqs * per_request
        fitting = min(wanted, blocks_that_fit(plan, free_bytes))
        sizes = replace(sizes, num_kv_blocks=max(per_request, fitting))
    plan.check(sizes.num_kv_blocks, free_bytes)
    return sizes


def build_parts(config: ExecutorConfig, loaded: LoadedModel, sizes: EngineConfig) -> DeviceParts:
    """Take the memory and capture the graphs, with a progress bar.

    Raises ValueError, naming the options that lower it, where memory ends before that.
    """
    grid = graph_sizes(config, max_draft_tokens=sizes.max_draft_tokens)
    _warn_of_the_tail(sizes, grid)
    try:
        parts = build_device_parts(loaded.model, _drafter(config, loaded, sizes), sizes, grid)
        if grid.rows:
            with progress_bar("capturing CUDA graphs") as progress:
                report = parts.graphs.capture_all(progress)
            _log.info(
                "CUDA graphs captured",
                graphs=report.num_graphs,
                seconds=round(report.seconds, 2),
                mib=report.num_bytes >> 20,
            )
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"the GPU has too little memory for the steps of max_num_seqs = {sizes.max_num_seqs}"
            f" with num_kv_blocks = {sizes.num_kv_blocks}; lower num_kv_blocks, max_num_seqs or"
            f" capture_sizes, or set enforce_eager. {_first_line(error)}"
        ) from error
    return parts


def _drafter(
    config: ExecutorConfig, loaded: LoadedModel, sizes: EngineConfig
) -> Drafter | DeviceDrafter:
    """The trained drafter runs on the device, the others beside the engine."""
    trace = config.acceptance_trace
    if config.drafter != "dspark" or config.drafter_checkpoint is None:
        if trace is not None:
            raise ValueError(f"acceptance_trace needs drafter = dspark, not {config.drafter}")
        return build_drafter(config, loaded, sizes)
    drafter = DeviceDSpark(
        load_checkpoint(config.drafter_checkpoint),
        loaded.model,
        num_slots=sizes.max_num_seqs,
        max_draft_tokens=sizes.max_draft_tokens,
        max_context_tokens=sizes.max_context_tokens,
    )
    if trace is None:
        return drafter
    _log.warning("acceptance is synthetic: outcomes are those of a recording", trace=str(trace))
    recorded = read_acceptance_trace(trace, sizes.max_draft_tokens)
    return RecordedDrafter(drafter, recorded, loaded.model.embedding.device)


def _memory(config: ExecutorConfig, loaded: LoadedModel, sizes: EngineConfig) -> MemoryPlan:
    return plan_memory(
        loaded.config,
        loaded.model.kv_block_bytes(sizes.block_size),
        sizes,
        draws_drafts=config.drafter == "dspark",
    )


def _warn_of_the_tail(sizes: EngineConfig, grid: GraphSizes) -> None:
    """Full verifications beyond the largest graph are served, eagerly and priced as such."""
    full, limit = sizes.max_num_seqs * (sizes.max_draft_tokens + 1), max(grid.rows, default=0)
    if 0 < limit < full:
        _log.warning(
            "full verifications of all requests are larger than the largest graph and run eagerly",
            max_num_seqs=sizes.max_num_seqs,
            rows=full,
            largest_graph=limit,
            remedy="raise max_num_batched_tokens or capture_sizes, or lower max_num_seqs",
        )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
