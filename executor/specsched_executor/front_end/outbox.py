"""What the engine's process has to say, on its way to the front end."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from specsched_executor.core import DeltaSink, TokenDelta
from specsched_executor.front_end.messages import Deltas, Progress
from specsched_executor.gateway.streams import UnreadDelta

__all__ = ["Outbox"]


class Outbox:
    """Any thread puts in and goes on; one of its own sends.

    While `send` waits for a reader, the deltas of an output merge. `send` may raise OSError where
    nobody reads any more: then all is dropped.
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send
        self._changed = threading.Condition(threading.Lock())
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

    def sink(self, key: int) -> DeltaSink:
        """Where the engine puts the deltas of a request."""
        return functools.partial(self._add, key)

    def put(self, message: Any) -> None:
        """Send a message after the deltas that are there."""
        with self._changed:
            self._messages.append(message)
            self._changed.notify()

    def _add(self, key: int, delta: TokenDelta) -> None:
        output = (key, delta.index)
        with self._changed:
            unsent = self._unsent.get(output)
            if unsent is not None:
                unsent.add(delta)
                return
            if not self._unsent:
                self._changed.notify()
            self._unsent[output] = UnreadDelta(delta)

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not (self._unsent or self._messages or self._is_closing):
                        self._changed.wait()
                    unsent, self._unsent = self._unsent, {}
                    messages, self._messages = self._messages, []
                    is_closing = self._is_closing
                if unsent:
                    self._send(_deltas(unsent))
                for message in messages:
                    self._send(message)
                if is_closing:
                    return
        except OSError:
            return  # whoever supervises the front end sees that it has ended


def _deltas(unsent: dict[tuple[int, int], UnreadDelta]) -> Deltas:
    progress: list[Progress] = []
    others = []
    for (key, index), unread in unsent.items():
        delta = unread.merged()
        if delta.finish_reason or delta.logprobs or delta.prompt_logprobs:
            others.append((key, delta))
        else:
            numbers = (delta.num_draft_tokens, delta.num_accepted_tokens)
            progress.append((key, index, delta.token_ids, *numbers))
    return Deltas(progress, others)
