"""Measures what steps cost on a device by running them as serving does.

Captured sizes are replayed; those beyond the largest run eagerly, the first of them one row more.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from specsched_executor.core import PAD_SLOT
from specsched_executor.device.assembly import DeviceParts
from specsched_executor.device.packed import PackedArrays
from specsched_executor.profiling.batches import StepShape, verification_shape
from specsched_executor.profiling.cost_profile import ContextSlope, CostProfile
from specsched_executor.profiling.options import ProfileOptions
from specsched_executor.profiling.profiler import DraftRun
from specsched_executor.profiling.timing import InterleavedTimer, Run, run_rounds

__all__ = ["profile_device", "profile_sizes"]

_GENERATION = 1
Progress = Callable[[int, int], None]


def profile_sizes(
    captured: tuple[int, ...], default: tuple[int, ...], most: int
) -> tuple[int, ...]:
    """Every captured size, one row beyond the largest, then the larger of the default ones.

    most: rows of a step. Nothing captured: the default ones.
    """
    if not captured:
        return default
    limit = captured[-1]
    beyond = {size for size in (limit + 1, *default) if limit < size <= most}
    return (*captured, *sorted(beyond))


def profile_device(
    parts: DeviceParts,
    options: ProfileOptions,
    fingerprint: str,
    *,
    draft: DraftRun | None = None,
    progress: Progress | None = None,
) -> CostProfile:
    """Time steps of every size, the slope of the context, and drafts; see ProfileOptions.

    Drafts are timed for the numbers of requests and the lengths that are captured. draft: drafts on
    the host, where the device does not draft.

    All is warmed up first, then timed in interleaved rounds. Samples are never called disturbed:
    a step there is one launch and one wait, in which the host's cores matter little, and what else
    runs on the GPU nobody tells. To be called before anything is served: the KV cache is written
    and no slot remembers anything afterwards.
    """
    bench = _StepBench(parts, options, draft)
    shapes = {n: verification_shape(n, options, options.context_tokens) for n in options.sizes}
    pair = _slope_pair(options)
    verify = bench.timer({n: bench.verify(shape) for n, shape in shapes.items()})
    context = bench.timer({shape.context_tokens: bench.verify(shape) for shape in pair})
    drafts = {
        length: bench.timer({n: bench.draft(n, length) for n in bench.draft_sizes()})
        for length in bench.draft_lens()
    }
    timers = (verify, context, *drafts.values())
    total = sum(len(timer.runs) for timer in timers) * (1 + options.max_rounds)
    done = itertools.count(1)

    def on_run() -> None:
        if progress is not None:
            progress(min(next(done), total), total)

    run_rounds(timers, options, on_run)
    verify.repeat_too_fast()
    bench.forget()
    draft_ms = {length: timer.samples_ms for length, timer in drafts.items()}
    return CostProfile(
        verify=verify.samples_ms,
        verify_context_tokens={n: shape.total_context_tokens for n, shape in shapes.items()},
        capture_limit=options.capture_limit,
        fingerprint=fingerprint,
        context=_slope(context, pair),
        draft=draft_ms.pop(options.max_draft_tokens),
        short_drafts=draft_ms,
    )


def _slope_pair(options: ProfileOptions) -> tuple[StepShape, StepShape]:
    """The same step, all requests in it, with a short and with a long context."""
    requests = max(1, options.max_requests // 4)
    rows = requests * (1 + options.max_draft_tokens // 2)
    return (
        StepShape(rows, requests, options.context_tokens),
        StepShape(rows, requests, options.long_context_tokens),
    )


def _slope(timer: InterleavedTimer, pair: tuple[StepShape, StepShape]) -> ContextSlope:
    short, long = pair
    short_ms, long_ms = (timer.samples_ms[shape.context_tokens] for shape in pair)
    extra_ms = statistics.median(b - a for a, b in zip(short_ms, long_ms, strict=True))
    extra_tokens = long.total_context_tokens - short.total_context_tokens
    return ContextSlope(max(0.0, extra_ms / extra_tokens))


class _StepBench:
    """Steps of made-up requests. Only what a step takes is timed, not how it was set up."""

    def __init__(
        self, parts: DeviceParts, options: ProfileOptions, host_draft: DraftRun | None
    ) -> None:
        self._step, self._graphs = parts.step, parts.graphs
        self._num_kv_blocks = parts.num_kv_blocks
        self._options = options
        self._host_draft = host_draft
        self._elapsed_s = 0.0

    def timer(self, runs: dict[int, Run]) -> InterleavedTimer:
        """Over the time that steps took."""
        return InterleavedTimer(runs, clock=lambda: self._elapsed_s)

    def draft_sizes(self) -> tuple[int, ...]:
        """Requests that draft; none where nobody does."""
        if self._step.drafter.is_idle and self._host_draft is None:
            return ()
        most = self._options.max_requests
        captured = () if self._step.drafter.is_idle else self._graphs.draft_requests
        return captured or tuple(sorted({1, max(1, most // 4), most}))

    def draft_lens(self) -> tuple[int, ...]:
        """Lengths of drafts: full ones, and on the device those that are captured besides."""
        captured = () if self._step.drafter.is_idle else self._graphs.draft_lens
        return tuple(sorted({*captured, self._options.max_draft_tokens}))

    def verify(self, shape: StepShape) -> Run:
        """A step of `shape` rows, its inputs brought to the device as serving does."""
        lens = _split(shape)
        has_prompts = int(lens.max()) > self._options.max_draft_tokens + 1
        inputs = self._inputs(shape, lens, has_prompts=has_prompts)
        starts = torch.from_numpy(shape.context_tokens - lens)

        def step() -> None:
            self._step.inputs.arrays.copy_from(inputs)
            self._graphs.verify(shape.num_rows, shape.num_requests, has_prompts=has_prompts)

        return lambda: self._time(starts, step)

    def draft(self, num_requests: int, num_tokens: int) -> Run:
        """A draft of `num_tokens` for each of `num_requests`, the likeliest tokens."""
        context = self._options.context_tokens
        shape = StepShape(num_requests, num_requests, context)
        inputs = self._inputs(shape, _split(shape), has_prompts=False, num_drafts=num_tokens)
        starts = torch.full((num_requests,), context - 1)

        def step() -> None:
            if self._host_draft is not None:
                self._host_draft(num_requests, num_tokens)
            else:
                self._graphs.draft(num_requests, num_tokens, draws=False)

        def run() -> None:
            self._step.inputs.arrays.copy_from(inputs)
            self._time(starts, step)

        return run

    def forget(self) -> None:
        """Leave the slots and inputs as they were found."""
        tables = self._step.tables
        for tensor in (
            tables.anchor_token_ids,
            tables.num_tokens,
            tables.draft_token_ids,
            tables.num_draft_tokens,
            tables.generations,
        ):
            tensor.zero_()
        tables.confidence.fill_(torch.nan)
        self._step.inputs.arrays["slot_ids"].fill_(PAD_SLOT)
        self._synchronize()

    def _time(self, starts: torch.Tensor, step: Callable[[], None]) -> None:
        tables, num_requests = self._step.tables, len(starts)
        tables.num_tokens[:num_requests] = (starts + 1).to(self._step.device)
        tables.num_draft_tokens.fill_(self._options.max_draft_tokens)
        tables.generations.fill_(_GENERATION)
        tables.confidence.fill_(0.5)
        self._synchronize()
        began = time.perf_counter()
        step()
        self._synchronize()
        self._elapsed_s += time.perf_counter() - began

    def _inputs(
        self,
        shape: StepShape,
        lens: np.ndarray[tuple[int], np.dtype[np.int64]],
        *,
        has_prompts: bool,
        num_drafts: int = 0,
    ) -> PackedArrays:
        """Every request decodes, or where rows are too many for that, every one is a prefill."""
        step, num = self._step, shape.num_requests
        is_pinned = step.device.type == "cuda"
        arrays = PackedArrays(step.inputs.arrays.layout, torch.device("cpu"), is_pinned=is_pinned)
        fields = {name: arrays.numpy(name) for name in arrays.layout.fields}
        fields["slot_ids"][:] = PAD_SLOT
        fields["slot_ids"][:num] = np.arange(num)
        fields["generations"][:num] = _GENERATION
        fields["samples"][:num] = True
        fields["weights"][:num] = fields["top_p"][:num] = 1
        fields["prior"][:] = 0.5
        fields["next_draft_lens"][:num] = num_drafts
        blocks = -(-shape.context_tokens // step.sizes.block_size)
        table = np.arange(num * blocks).reshape(num, blocks) % self._num_kv_blocks
        fields["block_tables"][:num, :blocks] = table
        if has_prompts:
            fields["num_base_rows"][:num] = lens
            fields["given_positions"][:num] = shape.context_tokens - lens
            fields["prompt_start"][:num] = np.cumsum(lens) - lens
        else:
            fields["num_base_rows"][:num] = 1
            fields["given_positions"][:num] = fields["prompt_start"][:num] = -1
            fields["draft_limits"][:num] = lens - 1
            fields["budget"][0] = shape.num_rows - num
        return arrays

    def _synchronize(self) -> None:
        if self._step.device.type == "cuda":
            torch.cuda.synchronize(self._step.device)


def _split(shape: StepShape) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of each request, as even as they can be."""
    ends = np.arange(shape.num_requests + 1) * shape.num_rows // shape.num_requests
    return np.diff(ends)
