"""The life of the executor process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import FrameType

import structlog
from specsched_protocol.run_dir import RunDirError

from specsched_executor.config import ExecutorConfig
from specsched_executor.gateway import Gateway, GatewayConfig, GatewayError, build_server
from specsched_executor.model import ModelLoadError

from .assembly import Executor, build_executor
from .facts import served_model

__all__ = ["serve"]

_log = structlog.get_logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CANNOT_START = 2


def serve(config: ExecutorConfig) -> int:
    """Serve until SIGTERM or SIGINT, then drain; return the process's exit status."""
    for number in _SIGNALS:
        signal.signal(number, _leave_while_starting)
    try:
        executor = build_executor(config)
    except (ModelLoadError, RunDirError, ValueError) as error:
        return _cannot_start(error)
    try:
        asyncio.run(_run(config, executor))
    except GatewayError as error:
        return _cannot_start(error)
    finally:
        executor.stop()
    _log.info("stopped")
    return 0


def _cannot_start(error: Exception) -> int:
    _log.error("cannot start", reason=str(error))
    return _CANNOT_START


def _leave_while_starting(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Nobody has been served yet, so there is nothing to drain."""
    sys.exit(0)


async def _run(config: ExecutorConfig, executor: Executor) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    gateway = build_server(
        executor.engine,
        served_model(config, executor.loaded, executor.sizes),
        executor.loaded.tokenizer,
        GatewayConfig(host=config.host, port=config.port),
        executor.schedulers,
    )
    executor.start()
    await gateway.start()
    _log.info(
        "serving",
        host=config.host,
        port=gateway.port,
        scheduler=config.effective_scheduler,
        pid=os.getpid(),
    )
    await stop.wait()
    await _drain(gateway, executor, config.drain_timeout_s)


async def _drain(gateway: Gateway, executor: Executor, timeout_s: float) -> None:
    stats = executor.engine.stats()
    _log.info(
        "draining",
        running=stats.num_running_requests,
        waiting=stats.num_waiting_requests,
        timeout_s=timeout_s,
    )
    await gateway.stop(timeout_s)
