"""The engine: a step loop in a thread of its own."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import structlog

from specsched_executor.core import (
    DeltaSink,
    Drafter,
    GenerationRequest,
    RequestError,
    TargetModel,
)
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.admission import Admission
from specsched_executor.engine.assembly import build_step_loop
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.counters import EngineStats, RateMeter
from specsched_executor.engine.delivery import Delivery
from specsched_executor.engine.stopping import Detokenizer
from specsched_executor.transport.base import PlanTransport

__all__ = ["Engine", "EngineStoppedError"]

_log = structlog.get_logger()


class EngineStoppedError(RuntimeError):
    """A request came after `stop`."""


class Engine:
    """Serves requests on one target. Thread-safe; only `stop` waits.

    Every submitted request gets exactly one last delta (`finish_reason` set), whatever happens.
    Sinks are called from the engine's thread and must not block. `detokenizer` is needed for stop
    strings only. The transport is the caller's to close, after `stop`.
    """

    def __init__(
        self,
        model: TargetModel,
        drafter: Drafter,
        transport: PlanTransport,
        config: EngineConfig,
        detokenizer: Detokenizer | None = None,
    ) -> None:
        self._admission = Admission(model.config, config, detokenizer)
        self._delivery = Delivery(self._forget)
        gate = ConfidenceGate(transport, config.max_num_seqs * config.max_draft_tokens)
        self._loop = build_step_loop(model, drafter, gate, config, self._delivery)
        self._wake = threading.Condition()
        self._live: dict[str, ActiveRequest] = {}
        self._new: list[ActiveRequest] = []
        self._aborted: list[ActiveRequest] = []
        self._num_arrived = 0
        self._is_stopping = False
        self._rate = RateMeter()
        self._stats = self._loop.stats()
        self._thread = threading.Thread(target=self._run, name="specsched-engine", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread serves; False before `start`, after `stop` and after a fault."""
        return self._thread.is_alive() and not self._is_stopping

    @property
    def max_context_tokens(self) -> int:
        """Prompt and output of a request together."""
        return self._admission.max_context_tokens

    def start(self) -> None:
        """Start serving; requests submitted before are served too."""
        self._thread.start()

    def stop(self) -> None:
        """Abort what is left and end the thread; idempotent."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._end_all()

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """Queue a request.

        Raises RequestError, naming the value and what is accepted, for one that cannot be served as
        asked, and EngineStoppedError after `stop`.
        """
        with self._wake:
            if self._is_stopping:
                raise EngineStoppedError("the engine has stopped")
            if request.request_id in self._live:
                raise RequestError(
                    f"request id {request.request_id!r} is in use; accepted: an id of no request"
                    " that is still running"
                )
            active = self._admission.accept(request, sink, self._num_arrived)
            self._num_arrived += 1
            self._live[request.request_id] = active
            self._new.append(active)
            self._wake.notify()

    def abort(self, request_id: str) -> bool:
        """End a request early, soon; its last delta says "abort". False for an unknown id."""
        with self._wake:
            request = self._live.get(request_id)
            if request is None:
                return False
            self._aborted.append(request)
            self._wake.notify()
            return True

    def stats(self) -> EngineStats:
        """The snapshot taken after the last step, with what has been submitted since."""
        stats = self._stats
        with self._wake:
            num_new = len(self._new)
        return replace(
            stats,
            num_waiting_requests=stats.num_waiting_requests + num_new,
            output_tokens_per_second=self._rate.at(time.monotonic()),
        )

    def _run(self) -> None:
        try:
            while self._take_orders():
                self._loop.step()
                self._take_snapshot()
            self._end_all()
            self._take_snapshot()
        except Exception:  # noqa: BLE001 - the thread ends here, and nobody may wait for it
            _log.exception("engine failed")
            self._give_up()

    def _take_orders(self) -> bool:
        """Carry out what was asked, waiting where there is nothing to do. False: stop."""
        with self._wake:
            while not (self._is_stopping or self._new or self._aborted or self._loop.has_work):
                self._wake.wait()
            new, self._new = self._new, []
            aborted, self._aborted = self._aborted, []
            is_stopping = self._is_stopping
        for request in new:
            self._loop.queue(request)
        for request in aborted:
            self._loop.abort(request)
        return not is_stopping

    def _end_all(self) -> None:
        with self._wake:
            queued, self._new = self._new, []
        for request in queued:
            self._loop.queue(request)
        for request in list(self._live.values()):
            self._loop.abort(request)

    def _give_up(self) -> None:
        """After a fault of the loop itself its state means nothing: only tell everyone."""
        with self._wake:
            self._is_stopping = True
            requests = list(self._live.values())
        for request in requests:
            self._delivery.send(request, error="the engine failed")

    def _take_snapshot(self) -> None:
        self._stats = self._loop.stats()
        self._rate.update(self._stats.num_output_tokens, time.monotonic())

    def _forget(self, request_id: str) -> None:
        with self._wake:
            self._live.pop(request_id, None)
