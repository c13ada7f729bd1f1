"""Carries out in the engine's process what the front end asks for."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import structlog
from specsched_protocol.recurring_failure import RecurringFailure

from specsched_executor.core import DuplicateIdError, RequestError, TokenDelta
from specsched_executor.engine_stopped import EngineStoppedError
from specsched_executor.front_end import messages as m
from specsched_executor.front_end.channel import Channel
from specsched_executor.front_end.outbox import Outbox
from specsched_executor.gateway.api import EngineApi

__all__ = ["OrderTaker", "Questions", "sendable_stats"]

_log = structlog.get_logger(__name__)

Questions = Mapping[m.Topic, Callable[[], Any]]


class OrderTaker:
    """Reads the channel on a thread of its own until it ends.

    on_message: told of what is no order; on_end: called once, after the last message that is read:
    where the other end is gone, or a fault here leaves nobody to take what it says.
    """

    def __init__(
        self,
        channel: Channel,
        engine: EngineApi,
        questions: Questions,
        *,
        on_message: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._engine = engine
        self._questions = questions
        self._on_message = on_message
        self._on_end = on_end
        self.outbox = Outbox(channel)
        self._unanswered = RecurringFailure("question not answered")
        self._thread = threading.Thread(target=self._run, name="from-front-end", daemon=True)

    def start(self) -> None:
        """Begin to read and to send."""
        self.outbox.start()
        self._thread.start()

    def close(self) -> None:
        """Once the other end is closed; closes the channel."""
        self._thread.join()
        self.outbox.close()
        self._channel.close()

    def _run(self) -> None:
        try:
            while True:
                for message in self._channel.receive():
                    self._take(message)
        except (EOFError, OSError):
            pass
        except Exception:  # noqa: BLE001 - the thread ends here, and nobody may wait for it
            _log.exception("orders are no longer taken")
        self._on_end()

    def _take(self, message: Any) -> None:
        match message:
            case m.Submit():
                self._submit(message)
            case m.Abort(key, request_id):
                # Only its own: the id may be that of another front end's request.
                self._engine.abort(request_id, self.outbox.sink(key))
            case m.AbortElsewhere(request_id):
                self._engine.abort(request_id)
            case m.Ask():
                self.outbox.put(self._answer(message))
            case _:
                self._on_message(message)

    def _answer(self, question: m.Ask) -> m.Answer | m.NotAnswered:
        try:
            return m.Answer(question.number, self._questions[question.topic]())
        except Exception as error:  # noqa: BLE001 - orders go on
            self._unanswered.tell(error, topic=question.topic.name)
            return m.NotAnswered(question.number, f"{type(error).__name__}: {error}")

    def _submit(self, message: m.Submit) -> None:
        request, sink = message.request, self.outbox.sink(message.key)
        try:
            self._engine.submit(request, sink)
        except DuplicateIdError as error:
            self._refuse(message, "duplicate", str(error))
        except RequestError as error:
            self._refuse(message, "refused", str(error))
        except EngineStoppedError as error:
            self._refuse(message, "stopped", str(error))
        except Exception:  # noqa: BLE001 - the request's end, not that of all others
            _log.exception("request not taken", request_id=request.request_id)
            self._refuse(message, "error", "the engine did not take it")

    def _refuse(self, message: m.Submit, reason: str, error: str) -> None:
        delta = TokenDelta(message.request.request_id, (), reason, error=error)
        self.outbox.add(message.key, delta)
        self.outbox.flush()


def sendable_stats(engine: EngineApi) -> SimpleNamespace:
    """The engine's totals, in a type whose module takes no torch to load at the other end."""
    stats = engine.stats()
    values = {field.name: getattr(stats, field.name) for field in dataclasses.fields(stats)}  # type: ignore[arg-type]
    values["num_fallback_steps"] = dict(stats.num_fallback_steps)
    return SimpleNamespace(**values)
