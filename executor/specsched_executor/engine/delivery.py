"""From the engine to whoever submitted a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from specsched_executor.batched_sink import BatchedSink, ProgressTaker
from specsched_executor.core import TokenDelta, TokenLogprobs
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.stopping import Stop
from specsched_executor.progress import Progress

__all__ = ["ABORTED", "Delivery"]

ABORTED = Stop("abort")

_log = structlog.get_logger()


class Delivery:
    """Calls the sinks. A sink that raises loses its request; nobody else notices.

    `on_end` is told of a request just before its last delta is sent.
    """

    def __init__(self, on_end: Callable[[ActiveRequest], None]) -> None:
        self._on_end = on_end
        self.num_failed_sinks = 0
        self._takers: dict[ProgressTaker, int] = {}
        self._by_number: list[ProgressTaker] = []
        self._unflushed: set[ProgressTaker] = set()

    def enrol(self, request: ActiveRequest) -> None:
        """Give the request the number of its taker, if its sink may be passed by."""
        if request.batched_sink is not None:
            taker = request.batched_sink.taker
            request.taker = self._takers.setdefault(taker, len(self._takers))
            if request.taker == len(self._by_number):
                self._by_number.append(taker)

    def send_all(self, progress: Progress, takers: npt.NDArray[np.integer[Any]]) -> None:
        """Hand new tokens of R outputs over; takers: by number, [R], rising."""
        if not len(takers):
            return
        firsts = [0, *(np.flatnonzero(np.diff(takers)) + 1).tolist()]
        parts = progress.split(firsts) if len(firsts) > 1 else [progress]
        for number, part in zip(takers[firsts].tolist(), parts, strict=True):
            taker = self._by_number[number]
            taker.take(part)
            self._unflushed.discard(taker)

    def flush(self) -> None:
        """Have takers pass on what their sinks were sent, and is not on its way with progress."""
        for taker in self._unflushed:
            taker.flush()
        self._unflushed.clear()

    def send(
        self,
        request: ActiveRequest,
        token_ids: Sequence[int] = (),
        stop: Stop | None = None,
        error: str | None = None,
        *,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> bool:
        """Send new tokens, or the end. False where the sink failed.

        What the request knows of its progress is told. One with a taker may wait for `flush`.
        """
        # By position: half the time, in what is made for each request of each step.
        delta = TokenDelta(
            request.request_id,
            tuple(token_ids),
            "error" if error else stop.finish_reason if stop else None,
            stop.matched if stop else None,
            error,
            request.num_prompt_tokens,
            request.num_output_tokens,
            request.num_verified_tokens,
            request.num_accepted_tokens,
            request.index,
            tuple(logprobs),
            _prompt_logprobs(request, token_ids),
        )
        if delta.finish_reason:
            self._on_end(request)
        sink = request.sink
        if isinstance(sink, BatchedSink):
            self._unflushed.add(sink.taker)
        try:
            sink(delta)
        except Exception:  # noqa: BLE001 - the sink is the caller's code; others must not suffer
            self.num_failed_sinks += 1
            _log.exception("sink failed", request_id=request.request_id)
            return False
        return True


def _prompt_logprobs(
    request: ActiveRequest, token_ids: Sequence[int]
) -> tuple[TokenLogprobs | None, ...]:
    """They go with the first tokens."""
    if request.request.sampling.prompt_logprobs is None:
        return ()
    is_first = token_ids and request.num_output_tokens == len(token_ids)
    return tuple(request.prompt_logprobs) if is_first else ()
