"""Schedulers that compile beside an executor that is about to measure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from specsched_protocol.run_dir import RunDir

from .progress import progress_bar

__all__ = ["let_schedulers_compile"]

_log = structlog.get_logger(__name__)

_POLL_S: Final = 0.5
_ANSWER_TIMEOUT_S: Final = 5.0


def let_schedulers_compile(run_dir: RunDir, max_wait_s: float) -> None:
    """Return once no scheduler of the run directory compiles any more, or the time is up.

    It takes minutes of a core when it starts for the first time: what steps take beside it is too
    much by half, and it takes longer itself. One that does not answer is not waited for.
    """
    names = _compiling(run_dir)
    if not names:
        return
    _log.info("letting a scheduler compile", schedulers=names, at_most_s=max_wait_s)
    since = time.monotonic()
    with progress_bar("letting a scheduler compile"):
        while names and time.monotonic() < since + max_wait_s:
            time.sleep(_POLL_S)
            names = _compiling(run_dir)
    if names:
        _log.warning(
            "a scheduler still compiles",
            schedulers=names,
            waited_s=max_wait_s,
            effect="steps are measured beside it and may seem dearer than they are",
            hint="a longer --compile-wait-s, or start it first",
        )


def _compiling(run_dir: RunDir) -> list[str]:
    return [path.stem for path in run_dir.scheduler_sockets() if _compiles(path)]


def _compiles(socket: Path) -> bool:
    """Its health is NOT_SERVING until it has compiled; also once it ends, which takes seconds."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_ANSWER_TIMEOUT_S
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING)
