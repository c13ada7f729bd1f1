"""Several front ends of one engine."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from specsched_executor.front_end.process import FrontEndProcess
from specsched_executor.front_end.setup import FrontEndSetup
from specsched_executor.gateway.api import EngineApi
from specsched_executor.gateway.counters_servicer import AttachedSchedulers
from specsched_executor.gateway.errors import GatewayError
from specsched_executor.gateway.ports import ReservedPorts
from specsched_executor.telemetry import RequestMeter

__all__ = ["FrontEnds"]


class FrontEnds:
    """As one `FrontEndProcess`, but `count` that listen on the same ports, with meters in `meter`.

    The kernel gives each connection to one of them. All serve or none: on_failure is told of the
    end of any. Raises GatewayError where a port is taken.
    """

    def __init__(
        self,
        engine: EngineApi,
        setup: FrontEndSetup,
        schedulers: AttachedSchedulers,
        meter: RequestMeter,
        on_failure: Callable[[], None],
        *,
        count: int,
    ) -> None:
        self._ports = ReservedPorts(setup.gateway)
        setup = dataclasses.replace(setup, gateway=self._ports.config)
        self.processes = tuple(
            FrontEndProcess(engine, setup, schedulers, meter.part(), on_failure)
            for _ in range(count)
        )
        self.port = setup.gateway.port
        self.listen_port = setup.gateway.listen and setup.gateway.listen.port

    async def start(self) -> None:
        """Take requests once all listen; where one cannot, end all and raise GatewayError."""
        try:
            await asyncio.gather(*(each.listening() for each in self.processes))
        except GatewayError:
            await self.stop(grace_s=0)
            raise
        finally:
            self._ports.close()
        for each in self.processes:
            await each.start()

    async def stop(self, grace_s: float) -> None:
        """See `FrontEndProcess.stop`."""
        await asyncio.gather(*(each.stop(grace_s) for each in self.processes))
