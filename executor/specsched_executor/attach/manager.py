"""Finds schedulers in the run directory, keeps a session with each, chooses the active one."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, replace
from functools import partial

import structlog
from specsched_protocol.handoff import HandoffError
from specsched_protocol.run_dir import RunDir
from specsched_protocol.v1 import executor_pb2, plan_pb2, scheduler_pb2

from specsched_executor.transport.lanes import LaneError

from .endpoints import SchedulerEndpoint
from .seams import AttachConfig, ExecutorFacts, LaneHost
from .session import AttachSession, SessionError

__all__ = ["AttachManager", "AttachmentInfo"]

_log = structlog.get_logger(__name__)

_STOP_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class AttachmentInfo:
    """A scheduler this executor is attached to, as seen now.

    target: what was dialled. transport: "shared_memory" or "inline", the latter with a reason.
    """

    scheduler_name: str
    target: str
    scheduler_version: str
    policy: plan_pb2.PolicySpec
    transport: str
    transport_reason: str
    lane: int
    epoch: int
    active: bool

    def to_message(self) -> executor_pb2.AttachedScheduler:
        """For the executor's own API."""
        return executor_pb2.AttachedScheduler(
            name=self.scheduler_name,
            version=self.scheduler_version,
            target=self.target,
            transport=scheduler_pb2.Transport.Value(f"TRANSPORT_{self.transport.upper()}"),
            transport_reason=self.transport_reason,
            lane=self.lane,
            epoch=self.epoch,
            active=self.active,
            policy=self.policy,
        )


@dataclass(slots=True)
class _Candidate:
    """An endpoint that was seen; `identity` tells a rebound socket from the old one."""

    identity: tuple[int, int]
    backoff_ms: float
    not_before: float = 0.0
    last_reason: str | None = None
    session: AttachSession | None = None


class AttachManager:
    """Daemon threads that keep the executor attached: one looks for sockets, one runs each session.

    The engine thread is never entered: lanes are the only thing shared with it, through `LaneHost`.
    The first scheduler that is ready becomes active; when it is gone, the one attached longest
    takes its place, and a lane is closed before anything else is done about its loss.
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
        self._candidates: dict[SchedulerEndpoint, _Candidate] = {}
        self._attached: list[AttachSession] = []  # ready ones, oldest first
        self._active: AttachSession | None = None
        self._stopping = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._poller = threading.Thread(target=self._poll, name="attach-poll", daemon=True)

    def start(self) -> None:
        """Begin to look for schedulers; returns at once."""
        self._poller.start()

    def stop(self) -> None:
        """Detach from every scheduler and end all threads, waiting a bounded time for them."""
        self._stopping.set()
        with self._lock:
            sessions = [c.session for c in self._candidates.values() if c.session]
            threads = [*self._threads]
        for session in sessions:
            session.detach("the executor is stopping")
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        if self._poller.ident is not None:  # it was started
            threads.append(self._poller)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for session in sessions:
            session.cancel("the executor is stopping")

    def update_cost(self, cost: plan_pb2.CostModel) -> None:
        """Give attached and future schedulers a new cost profile."""
        with self._lock:
            self._facts = replace(self._facts, cost=cost)
            for session in self._attached:
                session.send_cost(cost)

    def attachments(self) -> tuple[AttachmentInfo, ...]:
        """The schedulers attached and ready now, oldest first."""
        with self._lock:
            return tuple(_info(session, session is self._active) for session in self._attached)

    # ----- the polling thread -----

    def _poll(self) -> None:
        next_heartbeat = 0.0
        while not self._stopping.wait(self._config.poll_ms / 1e3):
            self._dial_new_endpoints()
            now = time.monotonic()
            if now >= next_heartbeat:
                next_heartbeat = now + self._config.heartbeat_ms / 1e3
                self._send_heartbeats()

    def _send_heartbeats(self) -> None:
        step_id = self._facts.current_step_id()
        with self._lock:
            for session in self._attached:
                session.send_heartbeat(step_id)

    def _dial_new_endpoints(self) -> None:
        sockets = map(SchedulerEndpoint.of_socket, self._run_dir.scheduler_sockets())
        endpoints = [*sockets, *self._config.endpoints]
        with self._lock:
            for endpoint in set(self._candidates) - set(endpoints):
                if self._candidates[endpoint].session is None:
                    del self._candidates[endpoint]
        for endpoint in endpoints:
            self._consider(endpoint)

    def _consider(self, endpoint: SchedulerEndpoint) -> None:
        identity = endpoint.identity()
        if identity is None:
            return
        with self._lock:
            candidate = self._candidates.get(endpoint)
            if candidate is None:
                candidate = _Candidate(identity, self._config.min_backoff_ms)
                self._candidates[endpoint] = candidate
            elif candidate.session is not None:
                return
            elif candidate.identity != identity:  # a new process: the old one's failures are void
                candidate.identity = identity
                candidate.backoff_ms = self._config.min_backoff_ms
                candidate.not_before = 0.0
            if time.monotonic() < candidate.not_before:
                return
            self._dial(endpoint, candidate)

    def _dial(self, endpoint: SchedulerEndpoint, candidate: _Candidate) -> None:
        shares_memory = self._config.shares_memory and endpoint.is_local
        try:
            offer = self._lanes.open_lane(share_memory=shares_memory)
        except (LaneError, HandoffError) as error:
            self._back_off(endpoint, candidate, str(error))
            return
        run_inline = partial(self._lanes.run_inline, offer.lane)
        candidate.session = AttachSession(endpoint, self._facts, offer, self._config, run_inline)
        thread = threading.Thread(
            target=self._run_session, args=[candidate], name=f"attach-{endpoint.name}", daemon=True
        )
        self._threads.add(thread)
        thread.start()

    def _back_off(self, endpoint: SchedulerEndpoint, candidate: _Candidate, reason: str) -> None:
        # Jitter keeps executors that lost the same scheduler from dialing in step.
        wait_ms = candidate.backoff_ms * random.uniform(0.8, 1.2)  # noqa: S311 - not a secret
        candidate.not_before = time.monotonic() + wait_ms / 1e3
        candidate.backoff_ms = min(candidate.backoff_ms * 2, self._config.max_backoff_ms)
        if reason != candidate.last_reason:
            _log.warning("cannot attach", scheduler=endpoint.name, reason=reason)
        candidate.last_reason = reason

    # ----- the threads of the sessions -----

    def _run_session(self, candidate: _Candidate) -> None:
        session = candidate.session
        if session is None:  # never: _dial sets it before the thread starts
            return
        reason = "internal error"
        try:
            session.run(self._on_ready, self._on_policy)
        except SessionError as error:
            reason = str(error)
        finally:
            self._on_end(session, candidate, reason)
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _on_ready(self, session: AttachSession) -> None:
        with self._lock:
            self._lanes.lane_ready(session.offer.lane)
            self._attached.append(session)
            self._candidates[session.endpoint].backoff_ms = self._config.min_backoff_ms
            self._candidates[session.endpoint].last_reason = None
            if self._active is None:
                self._activate(session)
            info = _info(session, session is self._active)
        _log.info("attached to scheduler", **_log_fields(info))

    def _on_policy(self, session: AttachSession) -> None:
        _log.info(
            "scheduler changed its policy",
            scheduler=session.scheduler_name,
            policy=_policy_text(session.policy),
        )

    def _on_end(self, session: AttachSession, candidate: _Candidate, reason: str) -> None:
        # First of all and without the lock: until the lane is closed its last decision may be read.
        self._lanes.close_lane(session.offer.lane)
        with self._lock:
            candidate.session = None
            was_attached = session in self._attached
            if was_attached:
                self._attached.remove(session)
            if session is self._active:
                self._activate(self._attached[0] if self._attached else None)
            successor = self._active.scheduler_name if self._active else None
            if not was_attached and not self._stopping.is_set():
                self._back_off(session.endpoint, candidate, reason)
        if not was_attached:
            return
        if self._stopping.is_set():
            _log.info("detached from scheduler", scheduler=session.scheduler_name)
            return
        _log.warning(
            "lost scheduler", scheduler=session.scheduler_name, reason=reason, active=successor
        )

    def _activate(self, session: AttachSession | None) -> None:
        self._active = session
        self._lanes.activate(session.offer.lane if session else None)


def _info(session: AttachSession, active: bool) -> AttachmentInfo:
    welcome = session.welcome or scheduler_pb2.Welcome()
    transport = scheduler_pb2.Transport.Name(welcome.transport)
    return AttachmentInfo(
        scheduler_name=session.scheduler_name,
        target=session.endpoint.target,
        scheduler_version=welcome.scheduler_version,
        policy=session.policy,
        transport=transport.removeprefix("TRANSPORT_").lower(),
        transport_reason=welcome.transport_reason,
        lane=session.offer.lane,
        epoch=session.offer.epoch,
        active=active,
    )


def _log_fields(info: AttachmentInfo) -> dict[str, object]:
    reason = {"because": info.transport_reason} if info.transport_reason else {}
    return {
        "scheduler": info.scheduler_name,
        "version": info.scheduler_version,
        "transport": info.transport,
        **reason,
        "policy": _policy_text(info.policy),
        "lane": info.lane,
        "active": info.active,
    }


def _policy_text(policy: plan_pb2.PolicySpec) -> str:
    parameters = ", ".join(f"{key}={value:g}" for key, value in policy.parameters.items())
    return f"{policy.name}({parameters})" if parameters else policy.name
