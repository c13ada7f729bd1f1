"""`python -m specsched_executor.front_end FD`: the child, for `FrontEndProcess` to start.

FD: its end of the socket pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from specsched_protocol.ending import end_process
from specsched_protocol.logs import configure_logging

from specsched_executor.front_end import messages as m
from specsched_executor.front_end.channel import Channel
from specsched_executor.front_end.remote_engine import RemoteEngine
from specsched_executor.front_end.setup import FrontEndSetup
from specsched_executor.garbage import keep_what_is_there
from specsched_executor.gateway import Gateway, GatewayError, build_server
from specsched_executor.telemetry import RequestMeter
from specsched_executor.tracing import RequestTracer, open_tracer

_MAX_CHUNKS_PER_SECOND: Final = 100_000
"""More than it manages: messages take no time of the engine's here, and merge where they lag."""
_METER_PERIOD_S: Final = 0.2
_LOST_ENGINE: Final = 1


def main() -> None:
    """Serve until told to stop; at once where the engine's process is gone."""
    with Channel(socket.socket(fileno=int(sys.argv[1]))) as channel:
        setup, *early = channel.receive()  # it may be told to stop right after
        configure_logging(setup.config.log_level, setup.config.log_format)
        with contextlib.closing(open_tracer(setup.config, setup.model.name)) as tracer:
            status = asyncio.run(_serve(channel, setup, early, tracer))
    end_process(status)


async def _serve(
    channel: Channel, setup: FrontEndSetup, early: Sequence[Any], tracer: RequestTracer
) -> int:
    orders: asyncio.Queue[Any] = asyncio.Queue()
    for order in early:
        orders.put_nowait(order)
    engine = RemoteEngine(
        channel, on_message=orders.put_nowait, on_end=lambda: orders.put_nowait(None)
    )
    meter = RequestMeter()
    config = setup.gateway
    if setup.config.max_messages_per_second is None:
        config = replace(config, max_chunks_per_second=_MAX_CHUNKS_PER_SECOND)
    try:
        gateway = build_server(
            engine,
            setup.model,
            setup,
            config,
            engine.schedulers,
            tracer=tracer,
            meter=meter,
            abort_elsewhere=engine.abort_elsewhere,
        )
    except GatewayError as error:
        engine.send(m.CannotListen(str(error)))
        return 0
    keep_what_is_there()
    engine.send(m.Listening(gateway.port, gateway.listen_port))
    telling = asyncio.ensure_future(_tell_meter(engine, meter))
    try:
        return await _obey(orders, gateway)
    finally:
        telling.cancel()
        engine.send(m.Metered(meter.__dict__))
        engine.close()


async def _obey(orders: asyncio.Queue[Any], gateway: Gateway) -> int:
    while True:
        match await orders.get():
            case m.Serve():
                await gateway.start()
            case m.Stop(grace_s):
                await gateway.stop(grace_s)
                return 0
            case None:
                await gateway.stop(0)
                return _LOST_ENGINE


async def _tell_meter(engine: RemoteEngine, meter: RequestMeter) -> None:
    """Now and then, where anything happened since."""
    told = None
    while True:
        await asyncio.sleep(_METER_PERIOD_S)
        if (now := (meter.first_token_s.sum, meter.num_finished.total())) != told:
            told = now
            engine.send(m.Metered(meter.__dict__))


if __name__ == "__main__":
    main()
