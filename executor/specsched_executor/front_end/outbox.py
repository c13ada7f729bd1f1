"""What the engine's process has to say, on its way to the front end."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from specsched_executor.batched_sink import BatchedSink
from specsched_executor.core import TokenDelta
from specsched_executor.front_end.channel import Channel
from specsched_executor.front_end.messages import Deltas
from specsched_executor.gateway.streams import UnreadDelta
from specsched_executor.progress import Progress, merged

__all__ = ["Outbox", "OutboxSink"]

_MAX_STEPS_APART: Final = 16
"""Steps that are merged when they are sent; where nobody takes them, more are at once."""


@dataclass(frozen=True, slots=True)
class OutboxSink(BatchedSink):
    """Where the engine puts the deltas of a request."""

    key: int
    taker: Outbox

    def __call__(self, delta: TokenDelta) -> None:
        """Goes on with what the taker is given next, or is told to send."""
        self.taker.add(self.key, delta)


class Outbox:
    """Any thread puts in and goes on; a ProgressTaker.

    What the socket has room for is sent by whoever brings it, which takes less of the interpreter
    than to wake another thread. The rest is for the outbox's own thread, and what comes before that
    is sent merges, by output. Where nobody reads any more, all is dropped.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._changed = threading.Condition(threading.Lock())
        self._steps: list[Progress] = []
        self._unsent: dict[tuple[int, int], UnreadDelta] = {}
        self._messages: deque[Any] = deque()
        self._rest: memoryview | None = None  # of a message that is sent in part
        self._is_lost = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="to-front-end", daemon=True)

    def start(self) -> None:
        """Begin to send what there is no room for at once."""
        self._thread.start()

    def close(self) -> None:
        """Send what is there, then end."""
        with self._changed:
            self._is_closing = True
            self._send()
            self._changed.notify()
        self._thread.join()

    def sink(self, key: int) -> OutboxSink:
        """For a request."""
        return OutboxSink(key, self)

    def put(self, message: Any) -> None:
        """Send a message after the deltas that are there."""
        with self._changed:
            self._messages.append(message)
            self._send()

    def take(self, progress: Progress) -> None:
        """See ProgressTaker."""
        with self._changed:
            self._steps.append(progress)
            if len(self._steps) >= _MAX_STEPS_APART:
                self._steps = [merged(self._steps)]
            self._send()

    def add(self, key: int, delta: TokenDelta) -> None:
        """A delta of a request that is sent after the progress that is there."""
        output = (key, delta.index)
        with self._changed:
            unsent = self._unsent.get(output)
            if unsent is None:
                self._unsent[output] = UnreadDelta(delta)
            else:
                unsent.add(delta)

    def flush(self) -> None:
        """See ProgressTaker."""
        with self._changed:
            self._send()

    def _send(self) -> None:
        """Send what is there, until the socket is full; the lock is held."""
        try:
            while self._rest is None and (message := self._next()) is not None:
                self._rest = self._channel.send_at_once(message)
        except OSError:
            self._lose()
        if self._rest is not None:
            self._changed.notify()

    def _next(self) -> Any:
        if self._is_lost:
            self._lose()
        if self._steps or self._unsent:
            steps, self._steps = self._steps, []
            unsent, self._unsent = self._unsent, {}
            others = [(key, unread.merged()) for (key, _), unread in unsent.items()]
            return Deltas(merged(steps) if steps else None, others).packed()
        return self._messages.popleft() if self._messages else None

    def _lose(self) -> None:
        """Whoever supervises the front end sees that it has ended."""
        self._is_lost, self._rest = True, None
        for each in (self._steps, self._unsent, self._messages):
            each.clear()

    def _run(self) -> None:
        with self._changed:
            while True:
                while self._rest is None and not self._is_closing:
                    self._changed.wait()
                if self._rest is None:
                    return
                self._finish(self._rest)
                self._send()

    def _finish(self, rest: memoryview) -> None:
        """Wait until a reader has made room; others put in meanwhile."""
        self._changed.release()
        try:
            self._channel.send_rest(rest)
        except OSError:
            is_lost = True
        else:
            is_lost = False
        finally:
            self._changed.acquire()
        self._rest = None
        if is_lost:
            self._lose()
