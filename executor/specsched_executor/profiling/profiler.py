"""Profiles a target model, and a drafter, by running them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from specsched_executor.core import TargetModel
from specsched_executor.profiling.batches import BatchFactory, StepShape, verification_shape
from specsched_executor.profiling.cost_profile import ContextSlope, CostProfile
from specsched_executor.profiling.options import ProfileOptions, draft_lengths
from specsched_executor.profiling.run_queue import RunQueue
from specsched_executor.profiling.timing import Clock, InterleavedTimer, Run, Waits, run_rounds

Progress = Callable[[int, int], None]
"""Called with (runs done, runs planned); the plan may shrink when time is up."""

DraftRun = Callable[[int, int], None]
"""Makes drafts for this many requests, of this many tokens each."""


def profile_model(
    model: TargetModel,
    options: ProfileOptions,
    fingerprint: str,
    *,
    draft: DraftRun | None = None,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
    waits: Waits | None = None,
) -> CostProfile:
    """Time verification steps of every size, the slope of the context, and drafts.

    All is warmed up first, then timed in interleaved rounds; see ProfileOptions for the effort.
    Contexts beyond the model's own are cut to it. waits: which samples were disturbed; None: as the
    kernel tells of this process. ValueError for sizes that it cannot hold.
    """
    timer = partial(InterleavedTimer, clock=clock, waits=waits or RunQueue().longest_wait_s)
    shapes = {size: _fit(model, size, options, options.context_tokens) for size in options.sizes}
    pairs = _slope_pairs(model, options)
    all_shapes = [*shapes.values(), *(shape for pair in pairs for shape in pair)]
    factory = BatchFactory(model, all_shapes, options.block_size)
    drafts = {} if draft is None else _draft_timers(draft, options, timer)
    num_runs = len(shapes) + 2 * len(pairs) + sum(len(each.runs) for each in drafts.values())
    count = _Counter(progress, num_runs * (1 + options.max_rounds))

    verify = timer({n: _runner(model, factory, s) for n, s in shapes.items()})
    context = [
        timer({s.context_tokens: _runner(model, factory, s) for s in pair}) for pair in pairs
    ]
    is_disturbed = run_rounds([verify, *context, *drafts.values()], options, count, clock)
    verify.repeat_too_fast()
    count.finish()
    draft_ms = {length: each.samples_ms for length, each in drafts.items()}
    return CostProfile(
        verify=verify.samples_ms,
        verify_context_tokens={size: shape.total_context_tokens for size, shape in shapes.items()},
        capture_limit=options.capture_limit,
        fingerprint=fingerprint,
        context=_fit_slope(context, pairs),
        draft=draft_ms.pop(options.max_draft_tokens, {}),
        short_drafts=draft_ms,
        is_disturbed=is_disturbed,
    )


def _fit(model: TargetModel, num_rows: int, options: ProfileOptions, context: int) -> StepShape:
    """A verification step within the model's context."""
    shape = verification_shape(num_rows, options, min(context, model.config.max_context_tokens))
    if shape.context_tokens > model.config.max_context_tokens:
        raise ValueError(
            f"profiling {num_rows} rows in {shape.num_requests} requests needs a context of "
            f"{shape.context_tokens}, the model's is {model.config.max_context_tokens}"
        )
    return shape


def _slope_pairs(model: TargetModel, options: ProfileOptions) -> list[tuple[StepShape, StepShape]]:
    """The same step with a short and with a long context; none where the model's is too short.

    One request, and a quarter of the most: the slope is a matter of memory and of arithmetic.
    """
    limit = model.config.max_context_tokens
    long = min(options.long_context_tokens, limit)
    short = min(options.context_tokens, long // 2)
    if short < 1 + options.max_draft_tokens:
        return []
    rows_each = 1 + options.max_draft_tokens // 2
    counts = sorted({1, max(1, options.max_requests // 4)})
    return [(StepShape(n * rows_each, n, short), StepShape(n * rows_each, n, long)) for n in counts]


def _fit_slope(
    timers: Sequence[InterleavedTimer], pairs: Sequence[tuple[StepShape, StepShape]]
) -> ContextSlope | None:
    """Least squares over the pairs of extra ms = slope * extra tokens; never negative."""
    if not timers:
        return None
    product = square = 0.0
    for timer, (short, long) in zip(timers, pairs, strict=True):
        short_ms, long_ms = map(statistics.median, timer.samples_ms.values())
        extra_tokens = long.total_context_tokens - short.total_context_tokens
        product += extra_tokens * (long_ms - short_ms)
        square += extra_tokens**2
    return ContextSlope(max(0.0, product / square))


def _draft_timers(
    draft: DraftRun, options: ProfileOptions, timer: Callable[[dict[int, Run]], InterleavedTimer]
) -> dict[int, InterleavedTimer]:
    """By length, each for some numbers of requests."""
    most = options.max_requests
    sizes = sorted({1, max(1, most // 4), most})
    return {
        length: timer({n: partial(draft, n, length) for n in sizes})
        for length in draft_lengths(options.max_draft_tokens)
    }


def _runner(model: TargetModel, factory: BatchFactory, shape: StepShape) -> Run:
    batch = factory.build(shape)

    def run() -> None:
        model.forward(batch, factory.kv_cache)

    return run


class _Counter:
    """Counts runs for the progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def finish(self) -> None:
        self._done = self._total - 1
        self()
