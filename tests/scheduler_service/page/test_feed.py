"""One look for everybody who listens, none where nobody does, and nobody waits for another."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from specsched_scheduler.page.feed import MAX_LISTENERS, Feed, TooManyListenersError

TIMEOUT_S = 60.0


class Looks:
    """Counts looks; fails where it is told to, waits while it is held."""

    def __init__(self) -> None:
        self.count = 0
        self.threads: set[int] = set()
        self.error: Exception | None = None
        self.free = threading.Event()
        self.free.set()

    def __call__(self):
        self.free.wait(TIMEOUT_S)
        self.threads.add(threading.get_ident())
        self.count += 1
        if self.error is not None:
            raise self.error
        return {"num_attached": 0, "executors": [], "count": self.count}


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
async def feed(looks):
    feed = Feed(looks, interval_s=0.01, beat_s=0.1)
    yield feed
    looks.free.set()
    await feed.close()


async def next_kind(events) -> str:
    async with asyncio.timeout(TIMEOUT_S):
        return (await anext(events)).decode().split("\n")[0].removeprefix("event: ")


async def until(condition) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.005)


async def test_first_everything_then_changes(feed, looks):
    async with feed.listener() as events:
        assert await next_kind(events) == "whole"
        assert await next_kind(events) in {"change", "whole"}
    assert threading.get_ident() not in looks.threads


async def test_who_missed_a_look_gets_a_whole_one(feed, looks):
    async with feed.listener() as events:
        await next_kind(events)
        seen = looks.count
        await until(lambda: looks.count > seen + 3)
        assert await next_kind(events) == "whole"


async def test_nobody_looks_while_nobody_listens(feed, looks):
    assert looks.count == 0
    async with feed.listener() as events:
        await next_kind(events)
    await until(lambda: feed._looking is None)
    looks.free.clear()
    async with feed.listener() as events:  # what was seen before is not news
        assert await next_kind(events) == "beat"
        looks.free.set()
        kind = "beat"
        while kind == "beat":
            kind = await next_kind(events)
        assert kind == "whole"


async def test_listeners_share_a_look_and_are_bounded(feed, looks):
    looks.free.clear()
    async with contextlib.AsyncExitStack() as stack:
        all_events = [
            await stack.enter_async_context(feed.listener()) for _ in range(MAX_LISTENERS)
        ]
        with pytest.raises(TooManyListenersError, match=str(MAX_LISTENERS)):
            async with feed.listener():
                pass
        waiting = [asyncio.create_task(next_kind(events)) for events in all_events]
        looks.free.set()
        assert set(await asyncio.gather(*waiting)) <= {"whole", "beat"}
    async with feed.listener() as events:  # places are free again
        await next_kind(events)


async def test_a_look_that_fails_is_not_the_end(feed, looks):
    looks.error = ValueError("once")
    async with feed.listener() as events:
        assert await next_kind(events) == "beat"
        looks.error = None
        kind = "beat"
        while kind == "beat":
            kind = await next_kind(events)
        assert kind == "whole"


async def test_the_end_is_told(feed):
    async with feed.listener() as events:
        await next_kind(events)
        await feed.close()
        kinds = [each.decode().split("\n")[0] async for each in events]
    assert kinds[-1] == "event: end"
    async with feed.listener() as events:
        assert await next_kind(events) == "end"
