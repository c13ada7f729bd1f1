"""`specsched.v1.ExecutorService`: what the engine counted, and who decides for it."""

# Names and parameters of the methods are the service's.
# ruff: noqa: ARG002, N802

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from specsched_protocol.v1 import executor_pb2, executor_pb2_grpc

from specsched_executor.gateway.api import EngineApi, StepTotals

__all__ = ["SERVICE_NAME", "AttachedSchedulers", "CountersServicer", "nobody", "to_step_counters"]

AttachedSchedulers = Callable[[], executor_pb2.ListSchedulersResponse]
"""Asked for the schedulers attached now, on a thread that may wait."""

SERVICE_NAME = executor_pb2.DESCRIPTOR.services_by_name["ExecutorService"].full_name


def nobody() -> executor_pb2.ListSchedulersResponse:
    """Of an executor that attaches to no scheduler."""
    return executor_pb2.ListSchedulersResponse()


class CountersServicer(executor_pb2_grpc.ExecutorServiceServicer):
    """Serves the counters of one engine and the list of its schedulers."""

    def __init__(self, engine: EngineApi, schedulers: AttachedSchedulers = nobody) -> None:
        self._engine = engine
        self._schedulers = schedulers
        self._start_s = time.monotonic()

    async def GetStepCounters(
        self, request: executor_pb2.GetStepCountersRequest, context: Any
    ) -> executor_pb2.GetStepCountersResponse:
        """Totals since the process started."""
        return executor_pb2.GetStepCountersResponse(
            uptime_seconds=time.monotonic() - self._start_s,
            counters=to_step_counters(await asyncio.to_thread(self._engine.stats)),
        )

    async def ListSchedulers(
        self, request: executor_pb2.ListSchedulersRequest, context: Any
    ) -> executor_pb2.ListSchedulersResponse:
        """The schedulers attached now, their transports, and how their decisions compare."""
        return await asyncio.to_thread(self._schedulers)


def to_step_counters(totals: StepTotals) -> executor_pb2.StepCounters:
    """The engine's totals as a message: fields of one name, reasons by their text."""
    counters = executor_pb2.StepCounters(
        num_fallback_steps={str(reason): n for reason, n in totals.num_fallback_steps.items()}
    )
    for field in executor_pb2.StepCounters.DESCRIPTOR.fields:
        if field.name != "num_fallback_steps":
            setattr(counters, field.name, getattr(totals, field.name))
    return counters
