"""A scheduler's metrics and page, written from one look."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client.core import Metric as Family

from .exposition import write_families
from .looking import look_at
from .snapshot import Snapshot
from .view import AttachmentView, Facts

__all__ = ["SchedulerTelemetry"]


class SchedulerTelemetry:
    """Reads counters that are there anyway; decisions never wait for it. Any thread.

    facts, attachments: asked for at each look.
    """

    def __init__(
        self, facts: Callable[[], Facts], attachments: Callable[[], Iterable[AttachmentView]]
    ) -> None:
        self._facts = facts
        self._attachments = attachments

    def collect(self) -> Iterable[Family]:
        """For Prometheus."""
        return write_families(self.snapshot())

    def snapshot(self) -> Snapshot:
        """For the page; may wait some tens of milliseconds for a fit."""
        facts = self._facts()
        return Snapshot(
            time_s=time.time(),
            name=facts.name,
            version=facts.version,
            policy=facts.policy,
            num_attached=facts.num_attached,
            is_learning_frozen=facts.is_learning_frozen,
            executors=tuple(look_at(each) for each in self._attachments()),
        )
