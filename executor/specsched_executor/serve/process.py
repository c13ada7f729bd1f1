"""The life of the executor process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine

import structlog
from specsched_protocol.ending import EndSignal
from specsched_protocol.exit_codes import ExitCode
from specsched_protocol.http.listeners import HttpListenError, Listeners
from specsched_protocol.run_dir import RunDir, RunDirError
from specsched_protocol.sd_notify import Notifier, feed_watchdog
from specsched_protocol.settings import ConfigError
from specsched_protocol.start_marks import marked_as_starting
from specsched_protocol.tcp import TcpAddress

from specsched_executor.config import ExecutorConfig
from specsched_executor.front_end import FrontEndProcess, FrontEnds, FrontEndSetup
from specsched_executor.garbage import keep_what_is_there
from specsched_executor.gateway import Gateway, GatewayError, build_server
from specsched_executor.model import ModelLoadError
from specsched_executor.telemetry import ExecutorHealth, RequestMeter
from specsched_executor.tracing import RequestTracer, open_tracer

from .assembly import Executor, build_executor, check_what_is_taken
from .crowding import heeding_other_programs
from .facts import gateway_config, model_name, served_model
from .liveness import EngineWatch
from .readiness import NotReadyError, prove_readiness
from .starting import build_unless_told_to_end
from .web import PREFERRED_PORT, serving_http

__all__ = ["serve"]

_log = structlog.get_logger(__name__)

_FrontEnd = Gateway | FrontEndProcess | FrontEnds


def serve(config: ExecutorConfig, end: EndSignal) -> int:
    """Serve until `end` comes, then drain; return the process's exit status.

    A thread may be left that compiles or computes: `end_process` is how to leave then.
    """
    try:
        with Listeners.bind(config.http_address, config.probe_address, PREFERRED_PORT) as listeners:
            status = _serve(config, end, listeners)
    except (
        *(GatewayError, HttpListenError, ModelLoadError),
        *(NotReadyError, RunDirError, ValueError),
    ) as error:
        _log.error("cannot start", reason=str(error))
        return error.exit_code if isinstance(error, ConfigError) else ExitCode.BAD_INPUT
    _log.info("stopped")
    return status


def _serve(config: ExecutorConfig, end: EndSignal, listeners: Listeners) -> int:
    check_what_is_taken(config)
    with contextlib.ExitStack() as start:
        start.enter_context(_marked_as_starting(config))
        executor = build_unless_told_to_end(
            lambda: build_executor(config), end, discard=Executor.stop
        )
        if executor is None:
            return 0
        try:
            name = model_name(config, executor.loaded)
            with contextlib.closing(open_tracer(config, name)) as tracer:
                run = _run_observed(config, executor, tracer, end, listeners, start=start)
                return asyncio.run(run)
        finally:
            executor.stop()


def _marked_as_starting(config: ExecutorConfig) -> contextlib.AbstractContextManager[None]:
    """Where others look for executors, as far as this one meets schedulers there."""
    if config.effective_scheduler != "auto":
        return contextlib.nullcontext()
    target = TcpAddress(config.host, config.port)
    return marked_as_starting(RunDir.open(config.run_dir), str(target))


async def _run_observed(
    config: ExecutorConfig,
    executor: Executor,
    tracer: RequestTracer,
    end: EndSignal,
    listeners: Listeners,
    *,
    start: contextlib.ExitStack,
) -> int:
    name, meter = model_name(config, executor.loaded), RequestMeter()
    async with serving_http(name, executor, meter, listeners) as health:
        return await _run(config, executor, tracer, end, meter=meter, health=health, start=start)


async def _run(
    config: ExecutorConfig,
    executor: Executor,
    tracer: RequestTracer,
    end: EndSignal,
    *,
    meter: RequestMeter,
    health: ExecutorHealth,
    start: contextlib.ExitStack,
) -> int:
    """start: closed once requests are served."""
    stop, failed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    end.tell(lambda: _tell(loop, stop))
    gateway = _gateway(config, executor, tracer, meter, lambda: _tell(loop, failed))
    executor.start(on_failure=lambda: _tell(loop, failed))
    proof = prove_readiness(executor.engine, executor.sizes, executor.loaded.config)
    is_ready = False
    try:
        is_ready = await _comes_before(proof, stop)
    finally:
        if not is_ready:
            await gateway.stop(grace_s=0)  # front ends of other processes have the ports by now
    if not is_ready:
        _log.info("ending", told="before anybody was served")
        return 0  # so there is nothing to drain
    keep_what_is_there()
    await gateway.start()
    start.close()
    health.target = str(TcpAddress(config.host, gateway.port))
    _log.info(
        "serving",
        host=config.host,
        port=gateway.port,
        listen=config.listen,
        listen_port=gateway.listen_port,
        mutual_tls=config.tls is not None,
        scheduler=config.effective_scheduler,
        pid=os.getpid(),
    )
    notifier = Notifier.of(os.environ)
    notifier.ready(f"serves {model_name(config, executor.loaded)} on port {gateway.port}")
    engine = executor.engine
    watch = EngineWatch(engine.stats, lambda: engine.is_running, config.stall_after_s)
    health.not_alive = watch.not_alive
    with contextlib.ExitStack() as beside:
        if not executor.runs_on_gpu and engine.thread_id is not None:
            beside.enter_context(heeding_other_programs(engine.thread_id))
        async with _beside(watch.run(), feed_watchdog(notifier, watch.not_alive)):
            await _first_of(stop, failed)
    if failed.is_set():
        notifier.stopping("the engine or the front end failed")
        # Nothing can be served any more: say so, and leave the restart to whoever supervises.
        await gateway.stop(grace_s=0)
        return ExitCode.FAILED
    notifier.stopping("lets running requests end")
    await _drain(gateway, executor, config.drain_timeout_s)
    return 0


def _gateway(
    config: ExecutorConfig,
    executor: Executor,
    tracer: RequestTracer,
    meter: RequestMeter,
    on_failure: Callable[[], None],
) -> _FrontEnd:
    """In processes of their own where the options say so; `on_failure` is told of any end."""
    model = served_model(config, executor.loaded, executor.sizes)
    tokenizer = executor.loaded.tokenizer
    options = gateway_config(config)
    if count := config.num_front_ends(is_on_gpu=executor.runs_on_gpu):
        setup = FrontEndSetup(config, options, model, tokenizer.backend, tokenizer.files())
        parts = (executor.engine, setup, executor.schedulers, meter, on_failure)
        return FrontEndProcess(*parts) if count == 1 else FrontEnds(*parts, count=count)
    return build_server(
        executor.engine,
        model,
        tokenizer,
        options,
        executor.schedulers,
        tracer=tracer,
        meter=meter,
    )


def _tell(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    # A loop that closed under us ends the process anyway.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


async def _comes_before(work: Coroutine[None, None, None], event: asyncio.Event) -> bool:
    """Whether `work` ends before `event` is set, which cancels it. Raises what `work` raises."""
    task, coming = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    await asyncio.wait({task, coming}, return_when=asyncio.FIRST_COMPLETED)
    coming.cancel()
    if event.is_set():
        task.cancel()
        return False
    await task
    return True


@contextlib.asynccontextmanager
async def _beside(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Has work that never ends go on until the end of the block."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


async def _drain(gateway: _FrontEnd, executor: Executor, timeout_s: float) -> None:
    stats = executor.engine.stats()
    _log.info(
        "draining",
        running=stats.num_running_requests,
        waiting=stats.num_waiting_requests,
        timeout_s=timeout_s,
    )
    await gateway.stop(timeout_s)
