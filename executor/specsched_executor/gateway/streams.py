"""From the engine's thread to the event loop: deltas that merge while nobody reads them.

The engine calls a sink per request and step; it takes a lock for a few list operations and goes on.
The loop is woken once for all requests that have news, at a pace that grows with the number of
streams, so neither a slow reader nor a small step time makes the front end set the engine's pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator
from typing import Final

from specsched_executor.core import TokenDelta

_MAX_APART: Final = 64


class DeltaStream:
    """The deltas of a request's outputs.

    Bounded: what is unread is one delta of each output, at most the whole of it.
    """

    def __init__(self, hub: StreamHub, num_outputs: int) -> None:
        self._hub = hub
        self._num_open = num_outputs
        self._lock = threading.Lock()
        self._unread: dict[int, UnreadDelta] = {}
        self._news = asyncio.Event()

    def push(self, delta: TokenDelta) -> None:
        """Merge a delta; called from the engine's thread, never blocks on a reader."""
        with self._lock:
            was_read = not self._unread
            unread = self._unread.get(delta.index)
            if unread is None:
                self._unread[delta.index] = UnreadDelta(delta)
            else:
                unread.add(delta)
        if was_read:
            self._hub.announce(self)

    def notify(self) -> None:
        """Wake the reader; called on the event loop."""
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        """Yield merged deltas until each output had its last one, with a finish_reason."""
        while self._num_open:
            await self._news.wait()
            self._news.clear()
            with self._lock:
                unread, self._unread = self._unread, {}
            for each in unread.values():
                delta = each.merged()
                self._num_open -= delta.finish_reason is not None
                yield delta


class UnreadDelta:
    """Deltas of one output since the last reading; few are kept apart, so that one is for free."""

    __slots__ = ("_deltas",)

    def __init__(self, delta: TokenDelta) -> None:
        self._deltas = [delta]

    def add(self, delta: TokenDelta) -> None:
        """Merge the next delta."""
        self._deltas.append(delta)
        if len(self._deltas) >= _MAX_APART:
            self._deltas = [self.merged()]

    def merged(self) -> TokenDelta:
        """All of them as one."""
        deltas = self._deltas
        if len(deltas) == 1:
            return deltas[0]
        return dataclasses.replace(
            deltas[-1],
            token_ids=tuple(token for delta in deltas for token in delta.token_ids),
            logprobs=tuple(each for delta in deltas for each in delta.logprobs),
            prompt_logprobs=next((d.prompt_logprobs for d in deltas if d.prompt_logprobs), ()),
        )


class StreamHub:
    """Wakes the event loop for all streams together, at a bounded number of deltas a second.

    Created on the loop that reads the streams.
    """

    def __init__(self, max_chunks_per_second: int) -> None:
        self._seconds_per_chunk = 1.0 / max_chunks_per_second
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._ready: list[DeltaStream] = []
        self._next_wake = 0.0

    def open(self, num_outputs: int = 1) -> DeltaStream:
        """Make the stream of one request."""
        return DeltaStream(self, num_outputs)

    def announce(self, stream: DeltaStream) -> None:
        """Note that a stream has news; called from the engine's thread."""
        with self._lock:
            is_first = not self._ready
            self._ready.append(stream)
        if is_first:
            # A loop that closed under us has no readers left to tell.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._schedule_wake)

    def _schedule_wake(self) -> None:
        self._loop.call_at(max(self._next_wake, self._loop.time()), self._wake)

    def _wake(self) -> None:
        with self._lock:
            ready, self._ready = self._ready, []
        for stream in ready:
            stream.notify()
        self._next_wake = self._loop.time() + len(ready) * self._seconds_per_chunk
