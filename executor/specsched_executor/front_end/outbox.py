"""What the engine's process has to say, on its way to the front end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from specsched_executor.core import TokenDelta
from specsched_executor.front_end.messages import Deltas
from specsched_executor.gateway.streams import UnreadDelta
from specsched_executor.progress import Progress, merged

__all__ = ["Outbox", "OutboxSink"]

_MAX_STEPS_APART: Final = 16
"""Steps that are merged when they are sent; where nobody takes them, more are at once."""
_Step = tuple[Progress, npt.NDArray[np.bool_] | None]


@dataclass(frozen=True, slots=True)
class OutboxSink:
    """Where the engine puts the deltas of a request; a BatchedSink."""

    key: int
    taker: Outbox

    def __call__(self, delta: TokenDelta) -> None:
        """Goes on at once."""
        self.taker.add(self.key, delta)


class Outbox:
    """Any thread puts in and goes on; one of its own sends.

    While `send` waits for a reader, what is there of an output merges. `send` may raise OSError
    where nobody reads any more: then all is dropped.
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send
        self._changed = threading.Condition(threading.Lock())
        self._steps: list[_Step] = []
        self._unsent: dict[tuple[int, int], UnreadDelta] = {}
        self._messages: list[Any] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="to-front-end", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self) -> None:
        """Send what is there, then end."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def sink(self, key: int) -> OutboxSink:
        """For a request."""
        return OutboxSink(key, self)

    def put(self, message: Any) -> None:
        """Send a message after the deltas that are there."""
        with self._changed:
            self._messages.append(message)
            self._changed.notify()

    def take(self, progress: Progress, is_own: npt.NDArray[np.bool_] | None) -> None:
        """See ProgressTaker; what is its own is picked out by the thread that sends."""
        with self._changed:
            self._steps.append((progress, is_own))
            if len(self._steps) >= _MAX_STEPS_APART:
                self._steps = [(_joined(self._steps), None)]
            self._changed.notify()

    def add(self, key: int, delta: TokenDelta) -> None:
        """A delta of a request that is sent after the progress that is there."""
        output = (key, delta.index)
        with self._changed:
            unsent = self._unsent.get(output)
            if unsent is None:
                self._unsent[output] = UnreadDelta(delta)
            else:
                unsent.add(delta)
            self._changed.notify()

    def _run(self) -> None:
        try:
            while not self._send_all():
                pass
        except OSError:
            return  # whoever supervises the front end sees that it has ended

    def _send_all(self) -> bool:
        """Wait for something to send, and send it; True where that was the last."""
        with self._changed:
            while not (self._steps or self._unsent or self._messages or self._is_closing):
                self._changed.wait()
            steps, self._steps = self._steps, []
            unsent, self._unsent = self._unsent, {}
            messages, self._messages = self._messages, []
            is_closing = self._is_closing
        if steps or unsent:
            others = [(key, unread.merged()) for (key, _), unread in unsent.items()]
            self._send(Deltas(_joined(steps) if steps else None, others))
        for message in messages:
            self._send(message)
        return is_closing


def _joined(steps: Sequence[_Step]) -> Progress:
    return merged([each if is_own is None else each.chosen(is_own) for each, is_own in steps])
