"""From the engine to whoever submitted a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import structlog

from specsched_executor.batched_sink import ProgressTaker
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

    def enrol(self, request: ActiveRequest) -> None:
        """Give the request the number of its taker, if its sink may be passed by."""
        if request.batched_sink is not None:
            taker = request.batched_sink.taker
            request.taker = self._takers.setdefault(taker, len(self._takers))

    def send_all(self, progress: Progress, takers: npt.NDArray[np.int64]) -> None:
        """Hand new tokens of R outputs over; takers: by number, [R]."""
        if len(self._takers) == 1 and len(takers):
            (taker,) = self._takers
            taker.take(progress, None)
            return
        for taker, number in self._takers.items():
            is_own = takers == number
            if is_own.any():
                taker.take(progress, is_own)

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

        What the request knows of its progress is told.
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
        try:
            request.sink(delta)
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
