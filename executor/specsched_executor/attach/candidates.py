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
    """An endpoint that was seen; `identity` tells a rebound socket from the old one."""

    endpoint: SchedulerEndpoint
    identity: tuple[int, int]
    backoff_ms: float
    not_before: float = 0.0
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
        """It attached: whatever went wrong before is void."""
        candidate = self._members[session.endpoint]
        candidate.backoff_ms = self._config.min_backoff_ms
        candidate.last_reason = None

    def failed(self, candidate: Candidate, reason: str) -> None:
        """It could not be attached to: wait before the next try, twice as long each time."""
        # Jitter keeps executors that lost the same scheduler from dialing in step.
        wait_ms = candidate.backoff_ms * random.uniform(0.8, 1.2)  # noqa: S311 - not a secret
        candidate.not_before = time.monotonic() + wait_ms / 1e3
        candidate.backoff_ms = min(candidate.backoff_ms * 2, self._config.max_backoff_ms)
        if reason != candidate.last_reason:
            _log.warning("cannot attach", scheduler=candidate.endpoint.name, reason=reason)
        candidate.last_reason = reason

    def _seen(self, endpoint: SchedulerEndpoint) -> Candidate | None:
        identity = endpoint.identity()
        if identity is None:
            return None
        candidate = self._members.get(endpoint)
        if candidate is None:
            candidate = Candidate(endpoint, identity, self._config.min_backoff_ms)
            self._members[endpoint] = candidate
        elif candidate.session is None and candidate.identity != identity:
            # A new process: the old one's failures are void.
            candidate.identity = identity
            candidate.backoff_ms = self._config.min_backoff_ms
            candidate.not_before = 0.0
        return candidate
