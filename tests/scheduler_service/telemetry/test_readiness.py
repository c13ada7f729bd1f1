"""Ready means that the scheduler's own service decides; alive, that its planners do."""

from __future__ import annotations

import asyncio

import aiohttp

from tests.scheduler_service.telemetry.driving import driven, until


async def get(scheduler, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{scheduler.server.web.http.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_not_ready_before_it_serves_nor_while_it_ends(start, monkeypatch):
    compiling = asyncio.Event()

    async def compile_slowly(*_: object, **__: object) -> None:
        await compiling.wait()

    monkeypatch.setattr("specsched_scheduler.service.server.in_daemon_thread", compile_slowly)
    scheduler = await start(http_address="127.0.0.1:0")
    assert await get(scheduler, "/readyz") == (503, "it is compiling, or shutting down\n")
    assert await get(scheduler, "/livez") == (200, "alive\n")
    compiling.set()
    await scheduler.until_serving()
    await until_ready(scheduler)
    port = scheduler.server.web.http.port
    await scheduler.stop()
    async with aiohttp.ClientSession() as session:
        try:
            await session.get(f"http://127.0.0.1:{port}/livez")
        except aiohttp.ClientConnectorError:
            return
    raise AssertionError("it still answers")


async def until_ready(scheduler) -> None:
    async with asyncio.timeout(60):
        while await get(scheduler, "/readyz") != (200, "ready\n"):
            await asyncio.sleep(0.05)


async def test_a_planner_that_ended_is_no_life(start, run_dir):
    scheduler = await start(http_address="127.0.0.1:0")
    await scheduler.until_serving()
    async with driven(scheduler, run_dir):
        assert await get(scheduler, "/livez") == (200, "alive\n")
        (attachment,) = scheduler.server._attachments
        attachment.planning._planner.stop()
        assert await get(scheduler, "/livez") == (503, "nobody decides for test\n")
    await until(lambda: not list(scheduler.server._attachments))
    assert await get(scheduler, "/livez") == (200, "alive\n")
