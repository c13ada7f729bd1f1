"""Start-up measurement of the step cost, as schedulers want it."""

from __future__ import annotations

import hashlib
import itertools
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch
from specsched_protocol.run_dir import RunDir
from specsched_protocol.v1 import plan_pb2

from specsched_executor.config import ExecutorConfig
from specsched_executor.core import Drafter, DraftInput
from specsched_executor.device import DeviceParts
from specsched_executor.device.profile import profile_device, profile_sizes
from specsched_executor.engine import EngineConfig
from specsched_executor.model import LoadedModel
from specsched_executor.profiling import (
    CostProfile,
    DraftRun,
    ProfileOptions,
    default_sizes,
    fingerprint,
    load_profile,
    profile_model,
    save_profile,
)

from .compiling import let_schedulers_compile
from .drafter import build_drafter
from .progress import progress_bar

__all__ = ["cost_message"]

_log = structlog.get_logger(__name__)

_CONTEXT_TOKENS = 256
_LONG_CONTEXT_TOKENS = 1024
_STEP_ROWS = 2
"""Tokens a step commits, about, in a run that is measured."""
_PERIOD = 16
"""Period of the history drafted from, so that each draft is a full one."""


def cost_message(
    config: ExecutorConfig,
    loaded: LoadedModel,
    sizes: EngineConfig,
    parts: DeviceParts | None = None,
) -> plan_pb2.CostModel:
    """The cost profile: taken before and kept, or measured now. Empty where it is not wanted.

    parts: what runs the steps, where that is not the model on this thread.
    """
    if config.effective_scheduler == "off" or config.profile == "off":
        return plan_pb2.CostModel()
    options = _options(config, loaded, sizes, () if parts is None else parts.graphs.rows)
    runner = _drafter_mark(config) + ("" if parts is None else f" on {_gpu_name(parts)}")
    mark = fingerprint(loaded.config, loaded.dtype, runner, options)
    kept = load_profile(config.profile_dir, mark) if config.profile_dir else None
    if kept is None:
        _log.info(
            "measuring what a step costs",
            takes="seconds to minutes; the first time it compiles, too",
            **_where_kept(config),
        )
    profile = kept or _measure(config, loaded, sizes, parts, options=options, mark=mark)
    if parts is not None:
        _prefer_cheapest(parts, profile)
    _log.info(
        "step cost known",
        measured=kept is None,
        disturbed=profile.is_disturbed,
        sizes=list(profile.verify),
        fingerprint=mark,
    )
    return profile.to_proto()


def _where_kept(config: ExecutorConfig) -> dict[str, str]:
    if config.profile_dir is None:
        return {"hint": "--profile-dir keeps it for later starts"}
    return {"kept_in": str(config.profile_dir)}


def _prefer_cheapest(parts: DeviceParts, profile: CostProfile) -> None:
    """Run each step in the captured size that is known to take least; a quick profile knows few."""
    medians = {rows: statistics.median(samples) for rows, samples in profile.verify.items()}
    if medians.keys() >= set(parts.graphs.rows):
        parts.graphs.prefer_cheapest(medians)


def _gpu_name(parts: DeviceParts) -> str:
    device = parts.step.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _options(
    config: ExecutorConfig,
    loaded: LoadedModel,
    sizes: EngineConfig,
    captured: tuple[int, ...] = (),
) -> ProfileOptions:
    context = loaded.config.max_context_tokens
    most_rows = min(sizes.max_num_batched_tokens, sizes.max_num_seqs * context)
    rows = default_sizes(sizes.max_num_seqs, sizes.max_draft_tokens, most_rows)
    rows = profile_sizes(captured, rows, most_rows)
    long_context = max(2, min(_LONG_CONTEXT_TOKENS, context))
    is_quick = config.profile == "quick"
    return ProfileOptions(
        sizes=_quick_sizes(rows, sizes) if is_quick else rows,
        capture_limit=max(captured, default=0),
        max_requests=sizes.max_num_seqs,
        max_draft_tokens=sizes.max_draft_tokens,
        context_tokens=min(_CONTEXT_TOKENS, long_context // 2),
        long_context_tokens=long_context,
        block_size=sizes.block_size,
        min_rounds=2 if is_quick else 3,
        max_rounds=2 if is_quick else 9,
        max_retake_seconds=5.0 if is_quick else 30.0,
    )


def _quick_sizes(rows: tuple[int, ...], sizes: EngineConfig) -> tuple[int, ...]:
    """Every third size up to a full verification: enough to interpolate, not to see stairs.

    Rows beyond it, of prefill chunks only, are extrapolated. Three sizes at least make a model.
    """
    full = sizes.max_num_seqs * (sizes.max_draft_tokens + 1)
    within = [size for size in rows if size <= full]
    chosen = tuple(sorted({*within[::3], within[-1]}))
    return chosen if len(chosen) >= 3 else rows[:4]


def _drafter_mark(config: ExecutorConfig) -> str:
    """Tells drafters of different cost apart."""
    if config.drafter_checkpoint is None:
        return config.drafter
    shape = (config.drafter_checkpoint / "config.json").read_bytes()
    return f"{config.drafter}-{hashlib.sha256(shape).hexdigest()[:12]}"


def _measure(
    config: ExecutorConfig,
    loaded: LoadedModel,
    sizes: EngineConfig,
    parts: DeviceParts | None,
    *,
    options: ProfileOptions,
    mark: str,
) -> CostProfile:
    if parts is None and config.effective_scheduler == "auto":
        let_schedulers_compile(RunDir.open(config.run_dir), config.compile_wait_s)
    on_device = parts is not None and parts.host_drafter is None
    # One of its own: what it keeps of made-up requests is no part of those that come.
    drafter = None if on_device else build_drafter(config, loaded, sizes)
    draft = None if drafter is None else _draft_run(drafter, loaded, options)
    with progress_bar("measuring the step cost") as progress:
        if parts is not None:
            profile = profile_device(parts, options, mark, draft=draft, progress=progress)
        else:
            profile = profile_model(loaded.model, options, mark, draft=draft, progress=progress)
    if profile.is_disturbed:
        _log.warning(
            "step cost measured on a busy machine",
            reason="threads of the model had to wait for cores, again and again",
            effect="steps seem dearer than they are until learning has mended it; it is not kept",
            hint="restart when nothing else computes; under a CPU limit, --num-threads",
        )
    elif config.profile_dir is not None:
        _keep(profile, config.profile_dir)
    return profile


def _keep(profile: CostProfile, folder: Path) -> None:
    try:
        save_profile(profile, folder)
    except OSError as error:  # it is measured again next time
        _log.warning("cannot keep the step cost", folder=str(folder), reason=str(error))


def _draft_run(drafter: Drafter, loaded: LoadedModel, options: ProfileOptions) -> DraftRun:
    """Drafts of the real drafter for n requests whose histories repeat themselves.

    One that reads hidden states gets a full context at first, then two tokens of it a draft. Every
    other request is sampled, which costs more than the likeliest tokens do.
    """
    period = np.tile(np.arange(_PERIOD, dtype=np.int32), options.context_tokens // _PERIOD + 2)
    num_given: dict[int, int] = {}

    def features(num_requests: int) -> dict[str, Any]:
        if not drafter.feature_layers:
            return {}
        counts = []
        for slot_id in range(num_requests):
            given = num_given.get(slot_id, 0)
            if given + _STEP_ROWS > loaded.config.max_context_tokens - 1:
                drafter.release(slot_id)
                given = 0
            counts.append(_STEP_ROWS if given else options.context_tokens)
            num_given[slot_id] = given + counts[-1]
        states = torch.zeros(sum(counts), loaded.config.hidden_size)
        return {
            "features": dict.fromkeys(drafter.feature_layers, states),
            "feature_start_loc": torch.tensor([0, *itertools.accumulate(counts)]),
        }

    def run(num_requests: int, num_tokens: int) -> None:
        drafter.draft(
            DraftInput(
                step_id=0,
                slot_ids=torch.arange(num_requests),
                generations=torch.ones(num_requests, dtype=torch.int64),
                histories=tuple(period for _ in range(num_requests)),
                max_draft_tokens=torch.full((num_requests,), num_tokens),
                temperatures=(torch.arange(num_requests) % 2 == 0).float(),
                seeds=torch.zeros(num_requests, dtype=torch.int64),
                **features(num_requests),
            )
        )

    return run
