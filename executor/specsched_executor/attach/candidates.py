"""Endpoints that were seen, and when each may be dialled again."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import structlog

from .endpoints import SchedulerEndpoint
from .seams import AttachConfig
from .session import AttachSession

__all__ = ["Candidate", "Candidates"]

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Candidate:
    """An endpoint that was seen; `identity` tells a rebound socket from the old one.

    backoff_ms: to wait after the next failure to attach; relapse_ms: after the next attachment that
    does not last. attached_s: when it attached last, time.monotonic().
    """

    endpoint: SchedulerEndpoint
    identity: tuple[int, int]
    backoff_ms: float
    relapse_ms: float
    not_before: float = 0.0
    attached_s: float = 0.0
    last_reason: str | None = None
    session: AttachSession | None = None


class Candidates:
    """All endpoints seen. Not thread-safe: its owner locks."""

    def __init__(self, config: AttachConfig) -> None:
        self._config = config
        self._members: dict[SchedulerEndpoint, Candidate] = {}

    def sessions(self) -> list[AttachSession]:
        """Sessions under way, attached or not yet."""
        return [each.session for each in self._members.values() if each.session]

    def due(self, endpoints: Collection[SchedulerEndpoint]) -> Iterator[Candidate]:
        """Those of `endpoints`, all that there are now, which are to be dialled."""
        for endpoint in set(self._members) - set(endpoints):
            if self._members[endpoint].session is None:
                del self._members[endpoint]
        for endpoint in endpoints:
            candidate = self._seen(endpoint)
            if candidate is None or candidate.session is not None:
                continue
            if time.monotonic() >= candidate.not_before:
                yield candidate

    def succeeded(self, session: AttachSession) -> None:
        """It attached: failures to do so before are void."""
        candidate = self._members[session.endpoint]
        candidate.attached_s = time.monotonic()
        candidate.backoff_ms = self._config.min_backoff_ms
        candidate.last_reason = None

    def lost(self, candidate: Candidate) -> None:
        """It was attached: wait before the next try, longer each time where that never lasts."""
        if time.monotonic() - candidate.attached_s > self._config.max_backoff_ms / 1e3:
            candidate.relapse_ms = self._config.min_backoff_ms
        candidate.relapse_ms = self._wait(candidate, candidate.relapse_ms)

    def failed(self, candidate: Candidate, reason: str) -> None:
        """It could not be attached to: wait before the next try, twice as long each time."""
        candidate.backoff_ms = self._wait(candidate, candidate.backoff_ms)
        if reason != candidate.last_reason:
            _log.warning("cannot attach", scheduler=candidate.endpoint.name, reason=reason)
        candidate.last_reason = reason

    def _wait(self, candidate: Candidate, backoff_ms: float) -> float:
        """Have it wait about so long; how long the next time."""
        # Jitter keeps executors that lost the same scheduler from dialing in step.
        wait_ms = backoff_ms * random.uniform(0.8, 1.2)  # noqa: S311 - not a secret
        candidate.not_before = time.monotonic() + wait_ms / 1e3
        return min(backoff_ms * 2, self._config.max_backoff_ms)

    def _seen(self, endpoint: SchedulerEndpoint) -> Candidate | None:
        identity = endpoint.identity()
        if identity is None:
            return None
        candidate = self._members.get(endpoint)
        if candidate is None:
            shortest_ms = self._config.min_backoff_ms
            candidate = Candidate(endpoint, identity, shortest_ms, shortest_ms)
            self._members[endpoint] = candidate
        elif candidate.session is None and candidate.identity != identity:
            # A new process: the old one's failures are void.
            candidate.identity = identity
            candidate.backoff_ms = candidate.relapse_ms = self._config.min_backoff_ms
            candidate.not_before = 0.0
        return candidate
