"""How long requests take, as their clients see it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from specsched_protocol.histogram import Histogram

from specsched_executor.core import GenerationRequest, TokenDelta

__all__ = ["FINISH_REASONS", "RequestMeter", "RequestTimes"]

FINISH_REASONS = ("stop", "length", "abort", "error")

# vLLM's, with some below them: the smallest of time per token would hold all that is fast.
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class RequestMeter:
    """Written on the event loop as deltas leave for clients; any thread may look."""

    def __init__(self) -> None:
        self.first_token_s = Histogram(_FIRST_TOKEN)
        self.per_token_s = Histogram(_PER_TOKEN)
        self.latency_s = Histogram(_LATENCY)
        self.num_prompt_tokens = 0
        self.num_finished: Counter[str] = Counter()
        self._parts: tuple[RequestMeter, ...] = ()

    def part(self) -> RequestMeter:
        """A new meter that `total` counts too, for another gateway of the engine."""
        part = RequestMeter()
        self._parts += (part,)
        return part

    def total(self) -> RequestMeter:
        """What this meter and its parts have counted by now."""
        total = RequestMeter()
        for meter in (self, *self._parts):
            total.first_token_s.add(meter.first_token_s)
            total.per_token_s.add(meter.per_token_s)
            total.latency_s.add(meter.latency_s)
            total.num_prompt_tokens += meter.num_prompt_tokens
            total.num_finished += meter.num_finished
        return total

    @contextmanager
    def request(self, request: GenerationRequest) -> Iterator[RequestTimes]:
        """Meter a request; outputs without an end at the block's count as aborted."""
        times = RequestTimes(self, request.sampling.n)
        try:
            yield times
        finally:
            self.num_finished["abort"] += times.num_open


class RequestTimes:
    """The outputs of one request. num_open: those without an end."""

    def __init__(self, meter: RequestMeter, num_outputs: int) -> None:
        self.num_open = num_outputs
        self._meter = meter
        self._begun_s = time.monotonic()
        self._first: dict[int, tuple[float, int]] = {}

    def receive(self, delta: TokenDelta) -> None:
        """New tokens of an output, or its end."""
        now_s, meter = time.monotonic(), self._meter
        if delta.token_ids and delta.index not in self._first:
            if not self._first:
                meter.num_prompt_tokens += delta.num_prompt_tokens
            self._first[delta.index] = (now_s, len(delta.token_ids))
            meter.first_token_s.observe(now_s - self._begun_s)
        if delta.finish_reason is not None:
            self._finish(delta, now_s)

    def _finish(self, delta: TokenDelta, now_s: float) -> None:
        meter = self._meter
        self.num_open -= 1
        meter.num_finished[str(delta.finish_reason)] += 1
        meter.latency_s.observe(now_s - self._begun_s)
        first_s, num_first = self._first.get(delta.index, (now_s, delta.num_output_tokens))
        num_later = delta.num_output_tokens - num_first
        if num_later > 0:
            meter.per_token_s.observe((now_s - first_s) / num_later)
