"""The scheduler's HTTP port: health and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from specsched_protocol.http.listeners import Listeners
from specsched_protocol.http.server import HttpServer
from specsched_protocol.metrics import build_registry

from specsched_scheduler.telemetry import SchedulerHealth

from .attachments import Attachments
from .views import describe

__all__ = ["PREFERRED_PORT", "SchedulerWeb"]

PREFERRED_PORT: Final = 9470
"""Of --http-address auto; a second scheduler of the machine takes any free one."""


class SchedulerWeb:
    """Lives on the server's event loop. telemetry: what metrics and page are written from.

    http: to mount more on, before `start`.
    """

    def __init__(
        self, name: str, version: str, socket_path: Path, attachments: Attachments
    ) -> None:
        self.telemetry = describe(name, version, attachments)
        self._attachments = attachments
        self._health = SchedulerHealth(socket_path, self._stopped_planners)
        self.http = HttpServer(build_registry(self.telemetry), self._health)

    async def start(self, listeners: Listeners) -> None:
        """Answer on the sockets there are."""
        await self.http.start(listeners)

    async def stop(self) -> None:
        """Answer no more."""
        await self.http.stop()
        await self._health.close()

    def not_alive(self) -> str | None:
        """Why only a new process could serve; None: nothing is wrong."""
        return self._health.not_alive()

    def _stopped_planners(self) -> list[str]:
        return [
            each.hello.executor_name for each in self._attachments if not each.planning.is_deciding
        ]
