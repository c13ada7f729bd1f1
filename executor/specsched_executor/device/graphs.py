"""Captured steps in two grids: verification by rows, drafting by requests and length."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from specsched_executor.device.device_step import DeviceStep, DraftShape, StepShape
from specsched_executor.device.graph_sizes import GraphSizes
from specsched_executor.device.told_logprobs import ToldLogprobs, WantedLogprobs
from specsched_executor.engine.filling import cheapest_sizes

__all__ = ["CaptureReport", "CudaReplayer", "Replayer", "RerunReplayer", "StepGraphs"]

Work = Callable[[], object]
Progress = Callable[[int, int], None]


class Replayer(Protocol):
    """Turns work on memory that stays where it is into something that can be run again."""

    def capture(self, work: Work) -> Work:
        """Record `work`; what is returned does the same on whatever the memory holds by then."""

    def num_bytes(self) -> int:
        """Device memory in use."""


class RerunReplayer:
    """Records nothing and runs the work again: any device, the same memory."""

    def capture(self, work: Work) -> Work:
        """See Replayer; runs it once, as capturing warms up."""
        work()
        return work

    def num_bytes(self) -> int:
        """Not known."""
        return 0


class CudaReplayer:
    """CUDA graphs over one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, work: Work) -> Work:
        """See Replayer. Runs once beforehand: kernels are compiled, libraries set up."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay

    def num_bytes(self) -> int:
        """Device memory in use, by whichever process."""
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """What capturing took."""

    num_graphs: int
    seconds: float
    num_bytes: int


class StepGraphs:
    """Runs steps in the cheapest captured size that holds them, else eagerly.

    num_replays, num_eager: how often, by shape.
    """

    def __init__(self, step: DeviceStep, sizes: GraphSizes, replayer: Replayer) -> None:
        self._step = step
        self._sizes = sizes
        self._replayer = replayer
        self._verify: dict[StepShape, Work] = {}
        self._draft: dict[DraftShape, Work] = {}
        self._in_use = sizes.rows
        self.num_replays: Counter[StepShape | DraftShape] = Counter()
        self.num_eager: Counter[StepShape | DraftShape] = Counter()

    @property
    def capture_limit(self) -> int:
        """Most rows of a captured step without prompts; 0 where none is captured."""
        return max(self._sizes.rows, default=0)

    @property
    def rows(self) -> tuple[int, ...]:
        """Captured sizes of steps without prompts."""
        return self._sizes.rows

    @property
    def draft_requests(self) -> tuple[int, ...]:
        """Captured numbers of requests that draft."""
        return self._sizes.draft_requests

    @property
    def draft_lens(self) -> tuple[int, ...]:
        """Captured lengths of drafts."""
        return self._sizes.draft_lens

    def capture_all(self, progress: Progress | None = None) -> CaptureReport:
        """Capture both grids, the largest first, so that the others fit into its memory."""
        started, bytes_before = time.monotonic(), self._replayer.num_bytes()
        shapes = sorted(self._verify_shapes(), reverse=True)
        drafts = sorted(self._draft_shapes(), reverse=True)
        total = len(shapes) + len(drafts)
        for index, shape in enumerate(shapes):
            self._verify[shape] = self._replayer.capture(partial(self._step.verify, shape))
            if progress is not None:
                progress(index + 1, total)
        for index, draft in enumerate(drafts, start=len(shapes)):
            self._draft[draft] = self._replayer.capture(partial(self._step.draft, draft))
            if progress is not None:
                progress(index + 1, total)
        num_bytes = max(0, self._replayer.num_bytes() - bytes_before)
        return CaptureReport(total, time.monotonic() - started, num_bytes)

    def prefer_cheapest(self, cost_ms: Mapping[int, float]) -> None:
        """From now on run n rows in the size >= n that costs least; the smallest of equals."""
        self._in_use = cheapest_sizes(self._sizes.rows, cost_ms)

    def sizes_in_use(self, *, has_prompts: bool) -> tuple[int, ...]:
        """Rising sizes that steps run in; more rows than the last run eagerly."""
        return self._sizes.prompt_rows if has_prompts else self._in_use

    def verify(self, num_rows: int, num_requests: int, *, has_prompts: bool) -> StepShape:
        """Run the step of the inputs, of at most `num_rows`; returns the shape that ran."""
        shape = self._captured_step(num_rows, num_requests, has_prompts)
        replay = None if shape is None else self._verify.get(shape)
        if shape is not None and replay is not None:
            self.num_replays[shape] += 1
            replay()
            return shape
        shape = self._eager_shape(num_rows, num_requests, has_prompts)
        self._step.verify(shape)
        return shape

    def verify_telling(
        self, num_rows: int, num_requests: int, wanted: WantedLogprobs, *, has_prompts: bool
    ) -> tuple[StepShape, ToldLogprobs | None]:
        """Run the step eagerly and return the log-probabilities wanted of it besides."""
        shape = self._eager_shape(num_rows, num_requests, has_prompts)
        return shape, self._step.verify(shape, wanted)

    def _eager_shape(self, num_rows: int, num_requests: int, has_prompts: bool) -> StepShape:
        shape = self._step_shape(num_rows, self._padded_requests(num_requests), has_prompts)
        self.num_eager[shape] += 1
        return shape

    def draft(self, num_requests: int, num_tokens: int, *, draws: bool) -> DraftShape:
        """Draft for the first `num_requests` of the inputs, at least `num_tokens` each."""
        requests = _at_least(self._sizes.draft_requests, num_requests)
        tokens = _at_least(self._sizes.draft_lens, num_tokens)
        if requests is not None and tokens is not None:
            shape = DraftShape(requests, tokens, draws)
            replay = self._draft.get(shape)
            if replay is not None:
                self.num_replays[shape] += 1
                replay()
                return shape
        shape = DraftShape(self._padded_requests(num_requests), num_tokens, draws)
        self.num_eager[shape] += 1
        self._step.draft(shape)
        return shape

    def _captured_step(
        self, num_rows: int, num_requests: int, has_prompts: bool
    ) -> StepShape | None:
        size = _at_least(self.sizes_in_use(has_prompts=has_prompts), num_rows)
        if size is None:
            return None
        is_alone = num_requests == 1 and not has_prompts and size <= self._step.max_query_len
        requests = 1 if is_alone else min(size, self._step.sizes.max_requests)
        return self._step_shape(size, requests, has_prompts)

    def _rows_of_one(self) -> tuple[int, ...]:
        """Sizes that are captured for a single decoding request besides, whose rows they all are.

        Host and device agree on its length, which spares attention the work of finding it.
        """
        most = self._step.max_query_len
        return tuple(size for size in self._sizes.rows if size <= most)

    def _step_shape(self, num_rows: int, num_requests: int, has_prompts: bool) -> StepShape:
        most = self._step.max_query_len
        longest = num_rows if has_prompts else min(most, num_rows)
        return StepShape(num_rows, num_requests, longest, has_prompts)

    def _padded_requests(self, num_requests: int) -> int:
        """A power of two: few shapes, so that serving compiles nothing."""
        return min(1 << max(num_requests - 1, 0).bit_length(), self._step.sizes.max_requests)

    def _verify_shapes(self) -> list[StepShape]:
        kinds = ((self._sizes.rows, False), (self._sizes.prompt_rows, True))
        most = self._step.sizes.max_requests
        shapes = [self._step_shape(n, min(n, most), kind) for sizes, kind in kinds for n in sizes]
        alone = [self._step_shape(n, 1, has_prompts=False) for n in self._rows_of_one()]
        return list(dict.fromkeys([*shapes, *alone]))

    def _draft_shapes(self) -> list[DraftShape]:
        if self._step.drafter.is_idle:
            return []
        draws = (False, True) if self._step.drafter.distribution is not None else (False,)
        return [
            DraftShape(requests, tokens, draw)
            for requests in self._sizes.draft_requests
            for tokens in self._sizes.draft_lens
            for draw in draws
        ]


def _at_least(sizes: tuple[int, ...], wanted: int) -> int | None:
    """Smallest of the rising sizes that is not below `wanted`."""
    index = bisect_left(sizes, wanted)
    return sizes[index] if index < len(sizes) else None
