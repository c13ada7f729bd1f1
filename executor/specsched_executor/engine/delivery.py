"""From the engine to whoever submitted a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from specsched_executor.batched_sink import Progress, ProgressTaker
from specsched_executor.core import TokenDelta, TokenLogprobs
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.stopping import Stop

__all__ = ["ABORTED", "Delivery"]

ABORTED = Stop("abort")

_log = structlog.get_logger()


class Delivery:
    """Calls the sinks. A sink that raises loses its request; nobody else notices.

    What batched sinks may be passed by with is kept until `flush`, once a step.
    `on_end` is told of a request just before its last delta is sent.
    """

    def __init__(self, on_end: Callable[[ActiveRequest], None]) -> None:
        self._on_end = on_end
        self.num_failed_sinks = 0
        self._rows: dict[ProgressTaker, list[Progress]] = {}

    def send(
        self,
        request: ActiveRequest,
        token_ids: Sequence[int] = (),
        stop: Stop | None = None,
        error: str | None = None,
        *,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> bool:
        """Send new tokens, or the end. False where the sink failed."""
        batched = request.batched_sink
        if batched is not None and stop is None and error is None:
            numbers = (request.num_verified_tokens, request.num_accepted_tokens)
            row = (batched.key, request.index, token_ids, *numbers)
            self._rows.setdefault(batched.taker, []).append(row)
            return True
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

    def flush(self) -> None:
        """Hand over what was kept."""
        batches, self._rows = self._rows, {}
        for taker, rows in batches.items():
            taker.take(rows)


def _prompt_logprobs(
    request: ActiveRequest, token_ids: Sequence[int]
) -> tuple[TokenLogprobs | None, ...]:
    """They go with the first tokens."""
    if request.request.sampling.prompt_logprobs is None:
        return ()
    is_first = token_ids and request.num_output_tokens == len(token_ids)
    return tuple(request.prompt_logprobs) if is_first else ()
