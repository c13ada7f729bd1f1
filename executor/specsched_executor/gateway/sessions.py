"""The requests that are open between clients and the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from specsched_executor.core import GenerationRequest, RequestError, TokenDelta
from specsched_executor.gateway.api import EngineApi
from specsched_executor.gateway.errors import (
    DuplicateRequestError,
    GenerationFailedError,
    NotServingError,
    OverloadedError,
)
from specsched_executor.gateway.streams import StreamHub
from specsched_executor.telemetry.requests import RequestMeter


class Sessions:
    """Opens requests on the engine and sees to it that each one ends.

    Lives on the event loop; `start_serving` and `stop_serving` open and close it for new ones.
    """

    def __init__(
        self,
        engine: EngineApi,
        hub: StreamHub,
        max_open_requests: int,
        meter: RequestMeter | None = None,
        abort_elsewhere: Callable[[str], object] | None = None,
    ) -> None:
        self._meter = meter or RequestMeter()
        self._engine = engine
        self._abort_elsewhere = abort_elsewhere
        self._hub = hub
        self._max_open_requests = max_open_requests
        self._open: set[str] = set()
        self._unstarted_prompt_tokens: dict[str, int] = {}
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._closed_because: str | None = "it has not started"

    @property
    def num_open(self) -> int:
        """Requests running or queued for clients of this gateway."""
        return len(self._open)

    @property
    def num_unstarted_prompt_tokens(self) -> int:
        """Prompt tokens of open requests that have brought no output yet."""
        return sum(self._unstarted_prompt_tokens.values())

    @property
    def closed_because(self) -> str | None:
        """Why no new request is taken; None while serving."""
        return self._closed_because

    def start_serving(self) -> None:
        """Take requests."""
        self._closed_because = None

    def stop_serving(self, reason: str) -> None:
        """Refuse new requests, giving `reason` to their clients; open ones go on."""
        self._closed_because = reason

    async def run(self, request: GenerationRequest) -> AsyncGenerator[TokenDelta]:
        """Yield the merged deltas of a request's outputs; leaving early aborts it in the engine.

        An output that fails ends the others too, since a call has one status. Raises RequestError,
        NotServingError, OverloadedError, DuplicateRequestError, or GenerationFailedError once the
        engine gives it up.
        """
        self._check_admission(request.request_id)
        num_running = request.sampling.n
        stream = self._hub.open(num_running)
        self._engine.submit(request, stream.push)
        self._open.add(request.request_id)
        self._all_ended.clear()
        self._unstarted_prompt_tokens[request.request_id] = len(request.prompt_token_ids)
        try:
            with self._meter.request(request) as times:
                async for delta in stream:
                    if (refusal := _refusal(delta)) is not None:
                        num_running = times.num_open = 0
                        raise refusal
                    times.receive(delta)
                    self._unstarted_prompt_tokens.pop(request.request_id, None)
                    num_running -= delta.finish_reason is not None
                    if delta.finish_reason == "error":
                        raise GenerationFailedError(delta.error or "the engine gave no reason")
                    yield delta
        finally:
            if num_running:
                self._engine.abort(request.request_id)
            self._open.discard(request.request_id)
            if not self._open:
                self._all_ended.set()
            self._unstarted_prompt_tokens.pop(request.request_id, None)

    def abort(self, request_id: str) -> None:
        """End a request early, of this gateway or another one; ids of none are ignored."""
        if request_id in self._open:
            self._engine.abort(request_id)
        elif self._abort_elsewhere is not None:
            self._abort_elsewhere(request_id)

    async def drain(self, timeout_s: float) -> None:
        """Wait until no request is open, for `timeout_s` seconds; then abort those that are.

        An aborted request goes on to its last delta like any other.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended.wait(), timeout_s)
        for request_id in tuple(self._open):
            self._engine.abort(request_id)

    def _check_admission(self, request_id: str) -> None:
        if self._closed_because is not None:
            raise NotServingError(f"the executor takes no requests: {self._closed_because}")
        if request_id in self._open:
            raise DuplicateRequestError(
                f"request_id {request_id!r} is already open; accepted: an id that no open request"
                " has, or none to get a random one"
            )
        if len(self._open) >= self._max_open_requests:
            raise OverloadedError(
                f"{len(self._open)} requests are open; accepted: {self._max_open_requests} at once"
            )


def _refusal(delta: TokenDelta) -> Exception | None:
    """What an engine in another process had against the request."""
    match delta.finish_reason:
        case "refused":
            return RequestError(delta.error)
        case "duplicate":
            return DuplicateRequestError(delta.error)
        case "stopped":
            return NotServingError(delta.error)
    return None
