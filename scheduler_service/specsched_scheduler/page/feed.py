"""Looks at the scheduler for everybody who watches its page."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from specsched_protocol.recurring_failure import RecurringFailure

from .frame import Frame, Payload, event

__all__ = ["MAX_LISTENERS", "Feed", "TooManyListenersError"]

MAX_LISTENERS = 16
_BEAT = event("beat", {})


class TooManyListenersError(RuntimeError):
    """The page is open too often."""


class Feed:
    """One look for all listeners, each second, and none while nobody listens.

    look: what is to be sent; called in a thread of its own, never twice at the same time. beat_s:
    after so long without a new look a listener is told that the process is there all the same.
    Lives on the server's event loop. A listener that is slow misses looks, and then gets a whole
    one; nothing is kept for it.
    """

    def __init__(
        self, look: Callable[[], Payload], *, interval_s: float = 1.0, beat_s: float = 3.0
    ) -> None:
        self._look = look
        self._interval_s = interval_s
        self._beat_s = beat_s
        self._newest: Frame | None = None
        self._number = 0
        self._num_listeners = 0
        self._changed = asyncio.Condition()
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False
        self._failure = RecurringFailure("no look for the page")

    @contextlib.asynccontextmanager
    async def listener(self) -> AsyncIterator[AsyncIterator[bytes]]:
        """Events for one listener, inside the block; raises TooManyListenersError."""
        if self._num_listeners >= MAX_LISTENERS:
            raise TooManyListenersError(f"{MAX_LISTENERS} pages are open, which is the most")
        self._num_listeners += 1
        if self._looking is None and not self._is_closed:
            self._looking = asyncio.create_task(self._keep_looking())
        try:
            yield self._events()
        finally:
            self._num_listeners -= 1

    async def close(self) -> None:
        """Tell every listener that the process ends."""
        self._is_closed = True
        async with self._changed:
            self._changed.notify_all()
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    async def _events(self) -> AsyncIterator[bytes]:
        seen = 0
        while (frame := await self._newer(seen)) is not None or not self._is_closed:
            if frame is None:
                yield _BEAT
                continue
            is_next = frame.number == seen + 1 and frame.change is not None
            seen = frame.number
            yield frame.change if is_next and frame.change else frame.whole
        yield event("end", {})

    async def _newer(self, seen: int) -> Frame | None:
        """The newest frame once it is newer than `seen`; None: not in time, or the feed ends."""

        def is_over() -> bool:
            return self._is_closed or self._number_now() > seen

        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(is_over), self._beat_s)
            return self._newest if self._number_now() > seen and not self._is_closed else None

    def _number_now(self) -> int:
        return 0 if self._newest is None else self._newest.number

    async def _keep_looking(self) -> None:
        while self._num_listeners:
            try:
                frame = await asyncio.to_thread(self._next_frame)
            except Exception as error:  # noqa: BLE001 - the page must not end for one bad look
                self._failure.tell(error)
            else:
                async with self._changed:
                    self._newest, self._number = frame, frame.number
                    self._changed.notify_all()
            await asyncio.sleep(self._interval_s)
        # An old look is no news to who comes next.
        self._newest, self._looking = None, None

    def _next_frame(self) -> Frame:
        return Frame.after(self._newest, self._number + 1, self._look())
