"""Finds schedulers in the run directory and keeps a session with each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import structlog
from specsched_protocol.handoff import HandoffError
from specsched_protocol.policy_text import policy_text
from specsched_protocol.recurring_failure import RecurringFailure
from specsched_protocol.run_dir import RunDir
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_executor.calibration import ConfidenceCalibration
from specsched_executor.transport.lanes import LaneError, LaneOffer

from .candidates import Candidate, Candidates
from .endpoints import SchedulerEndpoint
from .following import Following
from .info import AttachmentInfo, AttachTotals
from .seams import AttachConfig, ExecutorFacts, LaneHost
from .session import AttachSession, SessionError
from .watch import Duty, Watch

__all__ = ["AttachManager", "AttachmentInfo"]

_log = structlog.get_logger(__name__)

_STOP_TIMEOUT_S = 2.0
_ALONE = 10
"""So many times rarer is one scheduler watched, that nobody could take over from: on two cores each
look takes a step's threads some tenths of a millisecond."""


class AttachManager:
    """Daemon threads that keep the executor attached.

    One looks for sockets, one runs each session, one watches who is followed and compares the
    others. The engine thread is never entered: lanes are the only thing shared with it, through
    `LaneHost`. plan_outcomes: what each heartbeat tells of them; set before `start`.
    """

    def __init__(
        self,
        run_dir: RunDir,
        lanes: LaneHost,
        facts: ExecutorFacts,
        config: AttachConfig | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._lanes = lanes
        self._facts = facts
        self._config = config or AttachConfig()
        self._lock = threading.Lock()
        self._totals = AttachTotals()
        self._candidates = Candidates(self._config)
        self._following = Following(lanes, self._config.supervision)
        self._stopping = threading.Event()
        self._looking_fault = RecurringFailure("looking for schedulers failed")
        self._session_fault = RecurringFailure("attachment failed")
        self._not_looked_for: str | None = None
        self._watch = Watch(
            self._following.tick,
            (
                Duty(lanes.compare_shadows, self._config.compare_ms / 1e3),
                Duty(self._send_heartbeats, self._config.heartbeat_ms / 1e3),
            ),
            patience_s=self._config.supervision.failover_after_ms / 1e3,
            give_up=self._leave_unwatched,
        )
        self.plan_outcomes: Callable[[], pb.PlanOutcomes | None] = lambda: None
        self._threads: set[threading.Thread] = set()
        lanes.set_cost(facts.cost)

    def start(self) -> None:
        """Begin to look for schedulers; returns at once."""
        for target, name in ((self._poll, "attach-poll"), (self._supervise, "attach-watch")):
            self._start_thread(threading.Thread(target=target, name=name, daemon=True))

    def stop(self) -> None:
        """Detach from every scheduler and end all threads, waiting a bounded time for them."""
        self._stopping.set()
        with self._lock:
            sessions = self._candidates.sessions()
            threads = [*self._threads]
        for session in sessions:
            session.detach("the executor is stopping")
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for session in sessions:
            session.cancel("the executor is stopping")

    def update_cost(self, cost: plan_pb2.CostModel) -> None:
        """Give attached and future schedulers a new cost profile."""
        with self._lock:
            self._facts = replace(self._facts, cost=cost)
            sessions = self._candidates.sessions()
        self._lanes.set_cost(cost)
        for session in sessions:  # one that is not ready yet was told the old one in its Hello
            session.send_cost(cost)

    def attachments(self) -> tuple[AttachmentInfo, ...]:
        """The schedulers attached and ready now, oldest first."""
        return self._following.infos()

    def num_switches(self) -> Mapping[str, int]:
        """Changes of the active scheduler by reason."""
        return self._following.num_switches()

    def totals(self) -> AttachTotals:
        """Attachments since the start."""
        with self._lock:
            num_faults = self._looking_fault.num_failures + self._session_fault.num_failures
            return replace(self._totals, num_faults=num_faults + self._watch.num_faults)

    @property
    def elected_name(self) -> str:
        """The scheduler that is to be followed when it is attached; empty: none yet."""
        return self._following.elected_name

    # ----- the polling and the watching thread -----

    def _start_thread(self, thread: threading.Thread) -> None:
        thread.start()
        self._threads.add(thread)

    def _poll(self) -> None:
        while not self._stopping.wait(self._config.poll_ms / 1e3):
            try:
                self._look_for_schedulers()
            except Exception as error:  # noqa: BLE001 - nobody else would look
                self._looking_fault.tell(error)

    def _look_for_schedulers(self) -> None:
        try:
            found = self._run_dir.scheduler_sockets()
        except OSError as error:  # out of descriptors, say: that passes
            if str(error) != self._not_looked_for:
                _log.warning("cannot look for schedulers", reason=str(error))
            self._not_looked_for = str(error)
            return
        self._not_looked_for = None
        sockets = map(SchedulerEndpoint.of_socket, found)
        endpoints = [*sockets, *self._config.endpoints]
        with self._lock:
            if self._stopping.is_set():  # who attached now would not be told
                return
            for candidate in self._candidates.due(endpoints):
                self._dial(candidate)

    def _supervise(self) -> None:
        while not self._stopping.wait(self._watch_interval_s()):
            self._watch.turn()

    def _leave_unwatched(self) -> None:
        with self._lock:
            sessions = self._candidates.sessions()
        for session in sessions:
            session.cancel("this executor fails to watch it")

    def _watch_interval_s(self) -> float:
        is_alone = self._following.num_members <= 1
        return self._config.supervise_ms * (_ALONE if is_alone else 1) / 1e3

    def _send_heartbeats(self) -> None:
        heartbeat = pb.ExecutorHeartbeat(
            step_id=self._facts.current_step_id(), plan_outcomes=self.plan_outcomes()
        )
        with self._lock:
            sessions = self._candidates.sessions()
        for session in sessions:
            if session.ready:
                session.send_heartbeat(heartbeat)
        self._following.tell()

    def _dial(self, candidate: Candidate) -> None:
        endpoint = candidate.endpoint
        shares_memory = self._config.shares_memory and endpoint.is_local
        try:
            if endpoint.is_dead():
                self._candidates.failed(candidate, f"nobody listens at {endpoint.target}")
                return
            offer = self._lanes.open_lane(share_memory=shares_memory)
        except (LaneError, HandoffError, OSError) as error:
            self._candidates.failed(candidate, str(error))
            return
        try:
            self._begin_session(candidate, offer)
        except (OSError, RuntimeError) as error:  # out of descriptors, or of threads: that passes
            candidate.session = None
            self._lanes.close_lane(offer.lane)
            self._candidates.failed(candidate, str(error))

    def _begin_session(self, candidate: Candidate, offer: LaneOffer) -> None:
        endpoint, run_inline = candidate.endpoint, partial(self._lanes.run_inline, offer.lane)
        session = AttachSession(endpoint, self._facts, offer, self._config, run_inline)
        candidate.session = session
        name, arguments = f"attach-{endpoint.name}", [candidate, session]
        thread = threading.Thread(target=self._run_session, args=arguments, name=name, daemon=True)
        self._start_thread(thread)

    # ----- the threads of the sessions -----

    def _run_session(self, candidate: Candidate, session: AttachSession) -> None:
        reason, in_order = "internal error", False
        try:
            session.run(self)
        except SessionError as error:
            reason, in_order = str(error), error.in_order
        except Exception as error:  # noqa: BLE001 - the thread ends here, others attach
            with self._lock:
                self._session_fault.tell(error, scheduler=session.scheduler_name)
        finally:
            self._on_end(session, candidate, reason, in_order=in_order)
            with self._lock:
                self._threads.discard(threading.current_thread())

    def on_ready(self, session: AttachSession) -> None:
        """See SessionListener."""
        info = self._following.join(session)
        with self._lock:
            self._totals.num_attached += 1
            self._candidates.succeeded(session)
        _log.info("attached to scheduler", **info.log_fields())

    def on_policy(self, session: AttachSession) -> None:
        """See SessionListener."""
        _log.info(
            "scheduler changed its policy",
            scheduler=session.scheduler_name,
            policy=policy_text(session.policy),
        )

    def on_calibration(self, session: AttachSession, calibration: pb.Calibration) -> None:
        """See SessionListener."""
        max_draft_tokens = self._facts.model.max_draft_tokens
        ranking = ConfidenceCalibration.from_message(calibration, max_draft_tokens)
        self._lanes.lane(session.offer.lane).ranking.tell(ranking)

    def on_learned_state(self, session: AttachSession, document: str) -> None:
        """See SessionListener."""
        self._following.learned(session, document)

    def on_state_taken(self, session: AttachSession, refusal: str) -> None:
        """See SessionListener."""
        self._following.state_taken(session, refusal)

    def on_lane_request(self, session: AttachSession, request: pb.LaneRequest) -> None:
        """See SessionListener."""
        self._following.request(session, request)

    def _leave(self, session: AttachSession, reason: str) -> bool:
        """Whether it was attached."""
        try:
            return self._following.leave(session, reason)
        except Exception as error:  # noqa: BLE001 - else nobody would dial it again
            with self._lock:
                self._session_fault.tell(error, scheduler=session.scheduler_name)
            return session.ready

    def _on_end(
        self, session: AttachSession, candidate: Candidate, reason: str, *, in_order: bool
    ) -> None:
        # First of all, and without the manager's lock: its last decision may be read till then.
        was_attached = self._leave(session, reason)
        with self._lock:
            candidate.session = None
            if was_attached and not self._stopping.is_set():
                self._totals.num_ended += in_order
                self._totals.num_crashed += not in_order
            if was_attached:
                self._candidates.lost(candidate)
            elif not self._stopping.is_set():
                self._candidates.failed(candidate, reason)
        if not was_attached:
            return
        if self._stopping.is_set():
            _log.info("detached from scheduler", scheduler=session.scheduler_name)
            return
        active = self._following.active_name or None
        _log.warning(
            "lost scheduler", scheduler=session.scheduler_name, reason=reason, active=active
        )
