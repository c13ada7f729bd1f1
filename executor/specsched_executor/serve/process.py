"""The life of the executor process."""

from __future__ import annotations

import asyncio
import contextlib
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
from .readiness import NotReadyError, prove_readiness

__all__ = ["serve"]

_log = structlog.get_logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CANNOT_START = 2
_FAILED = 1


def serve(config: ExecutorConfig) -> int:
    """Serve until SIGTERM or SIGINT, then drain; return the process's exit status."""
    for number in _SIGNALS:
        signal.signal(number, _leave_while_starting)
    try:
        executor = build_executor(config)
    except (ModelLoadError, RunDirError, ValueError) as error:
        return _cannot_start(error)
    try:
        status = asyncio.run(_run(config, executor))
    except (GatewayError, NotReadyError) as error:
        return _cannot_start(error)
    finally:
        executor.stop()
    _log.info("stopped")
    return status


def _cannot_start(error: Exception) -> int:
    _log.error("cannot start", reason=str(error))
    return _CANNOT_START


def _leave_while_starting(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Nobody has been served yet, so there is nothing to drain."""
    sys.exit(0)


async def _run(config: ExecutorConfig, executor: Executor) -> int:
    stop, failed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    # Not the loop's own handlers: they end with it, and a second signal would kill what still ends.
    for number in _SIGNALS:
        signal.signal(number, lambda *_: _tell(loop, stop))
    gateway = build_server(
        executor.engine,
        served_model(config, executor.loaded, executor.sizes),
        executor.loaded.tokenizer,
        GatewayConfig(host=config.host, port=config.port),
        executor.schedulers,
    )
    executor.start(on_failure=lambda: _tell(loop, failed))
    await prove_readiness(executor.engine, executor.sizes, executor.loaded.config)
    await gateway.start()
    _log.info(
        "serving",
        host=config.host,
        port=gateway.port,
        scheduler=config.effective_scheduler,
        pid=os.getpid(),
    )
    await _first_of(stop, failed)
    if failed.is_set():
        # Nothing can be served any more: say so, and leave the restart to whoever supervises.
        await gateway.stop(grace_s=0)
        return _FAILED
    await _drain(gateway, executor, config.drain_timeout_s)
    return 0


def _tell(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    # A loop that closed under us ends the process anyway.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


async def _drain(gateway: Gateway, executor: Executor, timeout_s: float) -> None:
    stats = executor.engine.stats()
    _log.info(
        "draining",
        running=stats.num_running_requests,
        waiting=stats.num_waiting_requests,
        timeout_s=timeout_s,
    )
    await gateway.stop(timeout_s)
