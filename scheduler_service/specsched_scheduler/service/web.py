"""The scheduler's HTTP port: health, metrics and page."""

from __future__ import annotations

from typing import Final

from specsched_protocol.http.listeners import Listeners
from specsched_protocol.http.server import HttpServer
from specsched_protocol.metrics import build_registry
from specsched_protocol.run_dir import RunDir

from specsched_scheduler.page import Page, Phase, Promotions
from specsched_scheduler.telemetry import SchedulerHealth

from .attachments import Attachments
from .views import describe

__all__ = ["PREFERRED_PORT", "SchedulerWeb"]

PREFERRED_PORT: Final = 9470
"""Of --http-address auto; a second scheduler of the machine takes any free one."""


class SchedulerWeb:
    """Lives on the server's event loop. telemetry: what metrics and page are written from.

    phase: what the page is to say of the process. http: to mount more on, before `start`.
    """

    def __init__(
        self,
        name: str,
        version: str,
        run_dir: RunDir,
        attachments: Attachments,
        *,
        can_promote: bool = False,
    ) -> None:
        self.telemetry = describe(name, version, attachments)
        self.phase: Phase = "compiling"
        self._attachments = attachments
        self._health = SchedulerHealth(run_dir.scheduler_socket(name), self._stopped_planners)
        self.http = HttpServer(build_registry(self.telemetry), self._health)
        promotions = Promotions(run_dir, self._known_schedulers) if can_promote else None
        self._page = Page(self.telemetry, lambda: self.phase, promotions)
        self.http.mount(self._page.routes())

    async def start(self, listeners: Listeners) -> None:
        """Answer on the sockets there are."""
        await self.http.start(listeners)

    async def stop(self) -> None:
        """Answer no more."""
        await self._page.close()
        await self.http.stop()
        await self._health.close()

    def not_alive(self) -> str | None:
        """Why only a new process could serve; None: nothing is wrong."""
        return self._health.not_alive()

    def _stopped_planners(self) -> list[str]:
        return [
            each.hello.executor_name for each in self._attachments if not each.planning.is_deciding
        ]

    def _known_schedulers(self) -> set[str]:
        """Those that attached executors tell of."""
        statuses = [each.lane_control.status for each in self._attachments]
        return {lane.scheduler_name for each in statuses if each for lane in each.members}
