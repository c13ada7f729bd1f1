"""The engine: a step loop in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import structlog

from specsched_executor.core import (
    DeltaSink,
    Drafter,
    DuplicateIdError,
    GenerationRequest,
    TargetModel,
)
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.admission import Admission
from specsched_executor.engine.assembly import LoopParts, build_step_loop
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.counters import EngineStats, StepOutcomes
from specsched_executor.engine.delivery import Delivery
from specsched_executor.engine.drafting import Calibrations
from specsched_executor.engine.request_loop import RequestLoop
from specsched_executor.engine.stopping import Detokenizer
from specsched_executor.engine_stopped import EngineStoppedError
from specsched_executor.transport.base import PlanTransport

__all__ = ["Engine"]

_log = structlog.get_logger()


class Engine:
    """Serves requests on one target. Thread-safe; only `stop` waits.

    Every output of a submitted request gets exactly one last delta (`finish_reason` set), whatever
    happens.
    Sinks are called from the engine's thread and must not block. `detokenizer` is needed for stop
    strings only. The transport is the caller's to close, after `stop`. calibrations: what drafts
    are ranked by, asked for between two steps. device: what runs the steps in place of `model` on
    this thread; `drafter` is then theirs already.
    """

    def __init__(
        self,
        model: TargetModel,
        drafter: Drafter,
        transport: PlanTransport,
        config: EngineConfig,
        detokenizer: Detokenizer | None = None,
        *,
        calibrations: Calibrations = lambda: None,
        device: LoopParts | None = None,
    ) -> None:
        self._delivery = Delivery(self._forget)
        gate = ConfidenceGate(transport, config.max_num_seqs * config.max_draft_tokens)
        self._admission = Admission(model.config, config, detokenizer)
        self._loop: RequestLoop
        if device is None:
            self._loop = build_step_loop(
                model, drafter, gate, config, self._delivery, calibrations=calibrations
            )
        else:
            self._loop = device.build_loop(gate, config, self._delivery, calibrations)
        self._wake = threading.Condition()
        self._unfinished: dict[ActiveRequest, None] = {}  # in arrival order
        self._by_id: dict[str, list[ActiveRequest]] = {}  # those of them that nobody aborted
        self._new: list[ActiveRequest] = []
        self._aborted: list[ActiveRequest] = []
        self._is_stopping = False
        self._on_failure: Callable[[], None] | None = None
        self._stats = self._loop.stats()
        self._thread = threading.Thread(target=self._run, name="specsched-engine", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread serves; False before `start`, after `stop` and after a fault."""
        return self._thread.is_alive() and not self._is_stopping

    @property
    def thread_id(self) -> int | None:
        """The kernel's, of the thread that takes the steps; None before `start`."""
        return self._thread.native_id

    @property
    def max_context_tokens(self) -> int:
        """Prompt and output of a request together."""
        return self._admission.max_context_tokens

    def start(self, on_failure: Callable[[], None] | None = None) -> None:
        """Start serving; requests submitted before are served too.

        `on_failure` is called from the engine's thread, once, where a fault of the loop itself ends
        it: all requests have had their last delta by then, and no other will be served.
        """
        self._on_failure = on_failure
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
        """Queue a request; each of its n outputs gets deltas of its own, told by their index.

        Raises RequestError, naming the value and what is accepted, for one that cannot be served as
        asked, and EngineStoppedError after `stop`.
        """
        # Not under the lock, which steps need: a long prompt takes some milliseconds.
        outputs = self._admission.accept_all(request, sink)
        with self._wake:
            if self._is_stopping:
                raise EngineStoppedError("the engine has stopped")
            if request.request_id in self._by_id:
                raise DuplicateIdError(
                    f"request id {request.request_id!r} is in use; accepted: an id of no request"
                    " that is still running"
                )
            self._unfinished.update(dict.fromkeys(outputs))
            self._by_id[request.request_id] = list(outputs)
            self._new += outputs
            self._wake.notify()

    def abort(self, request_id: str, sink: DeltaSink | None = None) -> bool:
        """End a request early, soon: all its outputs end with "abort". False for an unknown id.

        The id is free for another request at once. sink: end it only if it was submitted with this
        one, else it counts as unknown.
        """
        with self._wake:
            outputs = self._by_id.get(request_id)
            if outputs is None or sink not in (None, outputs[0].sink):
                return False
            del self._by_id[request_id]
            self._aborted += outputs
            self._wake.notify()
            return True

    def stats(self) -> EngineStats:
        """The snapshot taken after the last step, with what has been submitted since."""
        stats = self._stats
        with self._wake:
            num_new = len(self._new)
        return replace(stats, num_waiting_requests=stats.num_waiting_requests + num_new)

    @property
    def outcomes(self) -> StepOutcomes:
        """Distributions over the steps so far; any thread may look."""
        return self._loop.outcomes

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
        for request in list(self._unfinished):
            self._loop.abort(request)

    def _give_up(self) -> None:
        """After a fault of the loop itself its state means nothing: only tell everyone."""
        with self._wake:
            self._is_stopping = True
            requests = list(self._unfinished)
        for request in requests:
            self._delivery.send(request, error="the engine failed")
        self._delivery.flush()
        if self._on_failure is not None:
            self._on_failure()

    def _take_snapshot(self) -> None:
        self._stats = self._loop.stats()

    def _forget(self, request: ActiveRequest) -> None:
        with self._wake:
            self._unfinished.pop(request, None)
            siblings = self._by_id.get(request.request_id, [])
            if request in siblings:
                siblings.remove(request)
                if not siblings:
                    del self._by_id[request.request_id]
