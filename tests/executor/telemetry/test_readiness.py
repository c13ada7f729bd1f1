"""Ready means that the gateway API itself answers."""

from __future__ import annotations

from specsched_executor.telemetry import ExecutorHealth

from tests.executor.gateway.fakes import FakeEngine, serving


async def test_ready_while_the_gateway_takes_requests():
    health = ExecutorHealth()
    assert "first request" in await health.not_ready()
    async with serving(FakeEngine()) as gateway:
        health.target = f"127.0.0.1:{gateway.port}"
        assert await health.not_ready() is None
        await gateway.set_serving("it is shutting down")
        assert await health.not_ready() == "it takes no requests: it is shutting down"
        await gateway.set_serving()
        assert await health.not_ready() is None
    assert "its own service answers UNAVAILABLE" in await health.not_ready()
    await health.close()


async def test_an_engine_that_does_not_answer_is_not_ready():
    class Broken(FakeEngine):
        def stats(self):
            raise RuntimeError("the counters are gone")

    health = ExecutorHealth()
    async with serving(Broken()) as gateway:
        health.target = f"127.0.0.1:{gateway.port}"
        assert "its own service answers INTERNAL" in await health.not_ready()
    await health.close()
