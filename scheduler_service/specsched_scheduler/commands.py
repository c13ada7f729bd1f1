"""The scheduler's part of the command line."""

from __future__ import annotations

import asyncio
import contextlib

import structlog
from specsched_protocol.ending import EndSignal, end_process
from specsched_protocol.exit_codes import ExitCode
from specsched_protocol.http.listeners import HttpListenError
from specsched_protocol.logs import configure_logging
from specsched_protocol.run_dir import RunDir, RunDirError
from specsched_protocol.settings import settings_command

from specsched_scheduler.config import SchedulerConfig
from specsched_scheduler.learning.document import load_state
from specsched_scheduler.learning.errors import StateError
from specsched_scheduler.planner import WarmUpError
from specsched_scheduler.policies import PolicyError, build_policy
from specsched_scheduler.service import SchedulerServer, ServiceError

__all__ = ["scheduler"]

_log = structlog.get_logger(__name__)


def run(config: SchedulerConfig) -> int:
    """Serve until SIGTERM or SIGINT, then end the process; return the status where it cannot."""
    end = EndSignal()
    configure_logging(config.log_level, config.log_format)
    try:
        policy = build_policy(config.policy)
        state = load_state(config.learned_state) if config.learned_state else None
        run_dir = RunDir.open(config.run_dir)
        asyncio.run(_serve(SchedulerServer(config, run_dir, policy, state), end))
    except (
        HttpListenError,
        PolicyError,
        RunDirError,
        ServiceError,
        StateError,
        WarmUpError,
    ) as error:
        _log.error("cannot start", reason=str(error))
        return ExitCode.BAD_INPUT
    return ExitCode.OK


async def _serve(server: SchedulerServer, end: EndSignal) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: there is nothing left to stop
            loop.call_soon_threadsafe(server.stop)

    end.tell(stop)
    await server.serve()
    # All is in order. Leaving the loop would wait for a warm-up or a plan that still compiles.
    end_process(0)


scheduler = settings_command(
    SchedulerConfig, run, doc="Run a scheduler that executors on this machine attach to."
)
