"""The engine as the front end sees it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from specsched_protocol.v1 import executor_pb2

from specsched_executor.core import DeltaSink, GenerationRequest, TokenDelta
from specsched_executor.front_end import messages as m
from specsched_executor.front_end.channel import Channel
from specsched_executor.gateway.api import EngineStats
from specsched_executor.gateway.errors import NotServingError
from specsched_executor.progress import merged

__all__ = ["RemoteEngine"]

_ANSWER_TIMEOUT_S: Final = 30.0
_LOST: Final = "the engine's process has ended"


@dataclass(slots=True)
class _Open:
    """A request that runs. num_left: outputs without an end. num_tokens: by output."""

    request: GenerationRequest
    sink: DeltaSink
    num_left: int
    num_tokens: dict[int, int] = field(default_factory=dict)


class RemoteEngine:
    """An EngineApi over a channel, which is read on the event loop that made it.

    A request that the engine does not take ends with the reason "refused", "duplicate" or
    "stopped", all with "error" where the engine's process ends. on_message: told of what is meant
    for somebody else; on_end: called once the engine's process has closed the channel.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        on_message: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._on_message = on_message
        self._on_end = on_end
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._open: dict[int, _Open] = {}
        self._keys: dict[str, int] = {}
        self._asked: dict[int, Future[Any]] = {}
        self._is_lost = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(channel.fileno(), self._read)

    def close(self) -> None:
        """Read no more."""
        self._loop.remove_reader(self._channel.fileno())

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """See EngineApi; on the event loop. Raises NotServingError without an engine."""
        self._require_engine()
        key = next(self._numbers)
        self._open[key] = _Open(request, sink, request.sampling.n)
        self._keys[request.request_id] = key
        self.send(m.Submit(key, request))

    def abort(self, request_id: str, sink: DeltaSink | None = None) -> None:
        """See EngineApi; on the event loop."""
        key = self._keys.get(request_id)
        if key is not None and sink in (None, self._open[key].sink):
            self.send(m.Abort(key, request_id))

    def abort_elsewhere(self, request_id: str) -> None:
        """End a request early that came through any front end of the engine."""
        self.send(m.AbortElsewhere(request_id))

    def stats(self) -> EngineStats:
        """See EngineApi; waits for the answer, so not on the event loop."""
        stats: EngineStats = self._ask(m.Topic.STATS)
        return stats

    def schedulers(self) -> executor_pb2.ListSchedulersResponse:
        """The schedulers attached now; waits for the answer, so not on the event loop."""
        return executor_pb2.ListSchedulersResponse.FromString(self._ask(m.Topic.SCHEDULERS))

    def send(self, message: Any) -> None:
        """To the engine's process; any thread. Whoever reads the channel sees that it has ended."""
        with self._lock, contextlib.suppress(OSError):
            self._channel.send(message)

    def _require_engine(self) -> None:
        if self._is_lost:
            raise NotServingError(_LOST)

    def _ask(self, topic: m.Topic) -> Any:
        number, answer = next(self._numbers), Future[Any]()
        self._asked[number] = answer
        self._require_engine()  # from here on its end ends the waiting
        self.send(m.Ask(number, topic))
        return answer.result(_ANSWER_TIMEOUT_S)

    def _read(self) -> None:
        """Take what has come since the loop was last here: of each output as one delta."""
        try:
            received = self._channel.receive_at_once()
        except (EOFError, OSError):
            self._lose()
            return
        messages = [m.Deltas.unpacked(each) if type(each) is tuple else each for each in received]
        deltas = [message for message in messages if isinstance(message, m.Deltas)]
        steps = [each.progress for each in deltas if each.progress is not None]
        if steps:
            for row in merged(steps).rows():
                self._advance(*row)
        for message in messages:
            self._take(message)

    def _lose(self) -> None:
        self._is_lost = True
        self.close()
        lost, self._open = self._open, {}
        self._keys.clear()
        for it in lost.values():
            it.sink(TokenDelta(it.request.request_id, (), "error", error=_LOST))
        while self._asked:
            self._asked.popitem()[1].set_exception(NotServingError(_LOST))
        self._on_end()

    def _take(self, message: Any) -> None:
        match message:
            case m.Deltas():  # their progress is taken, none of it comes after what is here
                for key, delta in message.others:
                    self._pass_on(key, delta)
            case m.Answer():
                self._asked.pop(message.number).set_result(message.value)
            case m.NotAnswered():
                self._asked.pop(message.number).set_exception(RuntimeError(message.reason))
            case _:
                self._on_message(message)

    def _advance(
        self, key: int, index: int, token_ids: list[int], num_drafts: int, num_accepted: int
    ) -> None:
        it = self._open.get(key)
        if it is None:
            return
        num_tokens = it.num_tokens.get(index, 0) + len(token_ids)
        it.num_tokens[index] = num_tokens
        it.sink(
            TokenDelta(
                it.request.request_id,
                tuple(token_ids),
                num_prompt_tokens=len(it.request.prompt_token_ids),
                num_output_tokens=num_tokens,
                num_draft_tokens=num_drafts,
                num_accepted_tokens=num_accepted,
                index=index,
            )
        )

    def _pass_on(self, key: int, delta: TokenDelta) -> None:
        it = self._open.get(key)
        if it is None:
            return
        it.num_tokens[delta.index] = delta.num_output_tokens
        it.num_left -= delta.finish_reason is not None
        if not it.num_left or delta.finish_reason in {"refused", "duplicate", "stopped"}:
            del self._open[key]
            if self._keys.get(delta.request_id) == key:  # not that of a later request of this id
                del self._keys[delta.request_id]
        it.sink(delta)
