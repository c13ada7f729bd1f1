"""From the engine's thread to the event loop: deltas that merge while nobody reads them.

The engine calls a sink per request and step; it takes a lock for a few list operations and goes on.
The loop is woken once for all requests that have news and sends them a few at a time, at a bounded
pace, so neither a slow reader nor a small step time makes the front end set the engine's pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from specsched_executor.core import TokenDelta

_MAX_APART: Final = 64
_MAX_SENDING: Final = 32
"""Streams whose messages are on their way at once: about a millisecond of the loop."""
_PATIENCE_S: Final = 0.002
_TIMER_S: Final = 0.001
"""The loop's timers are no finer: what is due sooner is done in its next turn."""


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
        try:
            while self._num_open:
                await self._news.wait()
                self._news.clear()
                with self._lock:
                    unread, self._unread = self._unread, {}
                for each in unread.values():
                    delta = each.merged()
                    self._num_open -= delta.finish_reason is not None
                    yield delta
                self._hub.note_sent(self)
        finally:
            self._hub.note_sent(self)


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
    """Wakes the readers of streams with news, at a bounded number of deltas a second.

    Few are on their way at once, the next when one of them has sent what it had: whatever else the
    loop has to do, such as to take a new request through its many turns, then never waits for the
    messages of all streams. Those whose turn has not come go on merging. One that waits for its
    client stands for another for some milliseconds, once. Created on the loop that reads the
    streams.
    """

    def __init__(self, max_chunks_per_second: int) -> None:
        self._seconds_per_chunk = 1.0 / max_chunks_per_second
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._ready: deque[DeltaStream] = deque()
        self._sending: dict[DeltaStream, float] = {}
        """Until when others wait for them; the earliest first."""
        self._next_wake = 0.0
        self._waking: asyncio.Handle | None = None
        self._waking_at = 0.0

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
                self._loop.call_soon_threadsafe(self._wake_at, 0.0)

    def note_sent(self, stream: DeltaStream) -> None:
        """All that a stream had is sent; called on the event loop."""
        if self._sending.pop(stream, None) is not None and self._ready:
            self._wake_at(0.0)

    def _wake_at(self, time_s: float) -> None:
        """Wake streams then, or as soon as that was wanted before."""
        if self._waking is not None:
            if self._waking_at <= time_s:
                return
            self._waking.cancel()
        self._waking_at = time_s
        if time_s - self._loop.time() < _TIMER_S:
            self._waking = self._loop.call_soon(self._wake)
        else:
            self._waking = self._loop.call_at(time_s, self._wake)

    def _wake(self) -> None:
        self._waking = None
        now_s, sending = self._loop.time(), self._sending
        if self._next_wake - now_s >= _TIMER_S:
            self._wake_at(self._next_wake)
            return
        while sending and next(iter(sending.values())) <= now_s:
            del sending[next(iter(sending))]
        with self._lock:
            num_woken = min(len(self._ready), _MAX_SENDING - len(sending))
            woken = [self._ready.popleft() for _ in range(num_woken)]
            are_more = bool(self._ready)
        for stream in woken:
            sending.pop(stream, None)  # to come last
            sending[stream] = now_s + _PATIENCE_S
            stream.notify()
        self._next_wake = max(self._next_wake, now_s) + num_woken * self._seconds_per_chunk
        if are_more:
            self._wake_at(max(self._next_wake, next(iter(sending.values()))))
