"""The routes of the page on a real scheduler: what they answer, to whom, and what they refuse."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import specsched_scheduler.page
from pydantic import ValidationError
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.config import SchedulerConfig
from specsched_scheduler.page import feed, page
from specsched_scheduler.page.feed import MAX_LISTENERS, Feed
from specsched_scheduler.page.origin import PAGE_HEADER
from yarl import URL

from tests.scheduler_service.telemetry.driving import DrivenExecutor, driven, telemetry

TIMEOUT_S = 60.0
SVG_NAMESPACE = "http://www.w3.org/2000/svg"
STATIC = Path(specsched_scheduler.page.__file__).parent / "static"


@pytest.fixture
async def scheduler(start):
    running = await start(http_address="127.0.0.1:0", freeze_learning=True)
    await running.until_serving()
    return running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


def url(scheduler, path: str) -> str:
    return f"http://127.0.0.1:{scheduler.server.web.http.port}{path}"


async def next_event(response: aiohttp.ClientResponse) -> tuple[str, Any]:
    async with asyncio.timeout(TIMEOUT_S):
        text = (await response.content.readuntil(b"\n\n")).decode()
    fields = dict(line.split(": ", 1) for line in text.strip().split("\n"))
    return fields["event"], json.loads(fields["data"])


async def event_of(response: aiohttp.ClientResponse, kind: str) -> Any:
    while True:
        told, data = await next_event(response)
        if told == kind:
            return data


# ===================== Files =====================


def referred(path: str, text: str) -> set[str]:
    """What a file has a browser load, as paths of this port."""
    found = re.findall(r'(?:href|src)="(/page/[^"]*)"', text)
    modules = re.findall(r'from "(\.[^"]*)"', text)
    return {*found, *(URL(f"http://page{path}").join(URL(each)).path for each in modules)}


async def test_the_page_and_all_that_it_refers_to_is_served_from_here(scheduler, session):
    waiting, seen = {"/"}, set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        async with session.get(url(scheduler, path)) as response:
            assert response.status == 200, path
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            waiting |= referred(path, await response.text()) - seen
    there = {f"/page/{path.relative_to(STATIC)}" for path in STATIC.rglob("*.*")}
    not_loaded = {path for path in there - seen if not path.endswith("/LICENSE")}
    assert not_loaded == {"/page/index.html"}


def test_nothing_comes_from_elsewhere_or_is_inline():
    own = [path for path in STATIC.rglob("*.*") if "vendor" not in path.parts]
    text = {path.name: path.read_text().replace(SVG_NAMESPACE, "") for path in own}
    doubtful = re.compile(r"https?://|url\(|@import|innerHTML|eval\(")
    assert {name for name, each in text.items() if doubtful.search(each)} == set()
    assert not re.search(r"<script>|style=|\son\w+=", text["index.html"])


async def test_a_file_that_is_known_is_not_sent_again(scheduler, session):
    async with session.get(url(scheduler, "/page/app.js")) as response:
        tag = response.headers["ETag"]
    headers = {"If-None-Match": tag}
    async with session.get(url(scheduler, "/page/app.js"), headers=headers) as response:
        assert response.status == 304


@pytest.mark.parametrize("path", ["/page/", "/page/../config.py", "/page/%2e%2e/page.py", "/x"])
async def test_nothing_else_is_served(scheduler, session, path):
    address = URL(url(scheduler, path), encoded=True)
    async with session.get(address) as response:
        assert response.status == 404


# ===================== Events =====================


async def test_events_tell_what_the_metrics_are_made_of(scheduler, session, run_dir):
    async with session.get(url(scheduler, "/page/events")) as response:
        assert response.content_type == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-store"
        whole = await event_of(response, "whole")
        assert whole["executors"] == []
        assert whole["phase"] == "serving"
        assert "No executor is attached" in whole["verdict"]["headline"]
        async with driven(scheduler, run_dir) as executor:
            await executor.run(scheduler, 64)
            decided = telemetry(scheduler).decisions.num_decisions
            whole = await event_of(response, "whole")  # somebody came
            while (change := await event_of(response, "change"))["executors"] == []:
                pass
    (it,) = change["executors"]
    assert it["decisions"]["num_decisions"] == decided == 64
    assert sum(each["num_decisions"] for each in whole["executors"][0]["decisions"]["seconds"])
    assert change["verdict"] is None
    assert it["verdict"]["headline"]
    assert it["choice"]["chosen"] == {"num_rows": 15, "ms": 9.5}


async def test_listeners_are_bounded(scheduler, session):
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_LISTENERS):
            response = await stack.enter_async_context(session.get(url(scheduler, "/page/events")))
            assert (await next_event(response))[0] == "whole"
        async with session.get(url(scheduler, "/page/events")) as response:
            name, data = await next_event(response)
            assert (name, str(MAX_LISTENERS) in data["reason"]) == ("full", True)
            assert await response.content.read() == b""


async def test_a_listener_that_never_reads_is_dropped(scheduler, session, monkeypatch):
    async def endless(_: Feed) -> AsyncIterator[bytes]:
        while True:
            yield b"event: x\n" * (1 << 16)

    monkeypatch.setattr(page, "_SEND_S", 0.1)
    monkeypatch.setattr(feed, "MAX_LISTENERS", 1)
    monkeypatch.setattr(Feed, "_events", endless)
    first = b"event: full\n"
    async with session.get(url(scheduler, "/page/events")):  # and never read
        async with asyncio.timeout(TIMEOUT_S):
            while first == b"event: full\n":
                async with session.get(url(scheduler, "/page/events")) as response:
                    first = await response.content.readline()
    assert first == b"event: x\n"


async def test_the_end_is_told_and_held_up_by_nobody(start, session):
    running = await start(http_address="127.0.0.1:0", name="ending")
    async with session.get(url(running, "/page/events")) as response:
        await event_of(response, "whole")
        running.server.stop()
        await event_of(response, "end")
        assert await response.content.read() == b""


async def test_a_page_of_another_site_takes_no_place(scheduler, session):
    for site in ("cross-site", "same-site"):
        headers = {"Sec-Fetch-Site": site}
        async with session.get(url(scheduler, "/page/events"), headers=headers) as response:
            assert response.status == 403
            assert site in await response.text()


# ===================== Promotion =====================


def page_headers(scheduler, **changes: str) -> dict[str, str]:
    headers = {"Origin": url(scheduler, ""), PAGE_HEADER: "1", "Sec-Fetch-Site": "same-origin"}
    return {key: value for key, value in (headers | changes).items() if value}


async def post(scheduler, session, headers, body: Any = None) -> tuple[int, str]:
    data = json.dumps({"scheduler": "default"} if body is None else body)
    address = url(scheduler, "/page/promote")
    async with session.post(address, headers=headers, data=data) as response:
        return response.status, await response.text()


async def test_promotion_is_off_by_default(scheduler, session):
    status, text = await post(scheduler, session, page_headers(scheduler))
    assert (status, "--page-promote" in text) == (403, True)


@pytest.fixture
async def promoting(start):
    running = await start(http_address="127.0.0.1:0", page_promote=True)
    await running.until_serving()
    return running


@pytest.mark.parametrize(
    "changes",
    [
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {PAGE_HEADER: ""},
    ],
)
async def test_only_the_page_itself_may_promote(promoting, session, changes):
    status, _ = await post(promoting, session, page_headers(promoting, **changes))
    assert status == 403


@pytest.mark.parametrize("body", [[], {"scheduler": 3}, {}, "x"])
async def test_a_malformed_promotion_is_refused(promoting, session, body):
    status, text = await post(promoting, session, page_headers(promoting), body)
    assert (status, '{"scheduler": "NAME"}' in text) == (400, True)


@pytest.mark.parametrize(
    ("headers", "data"),
    [
        ({"Content-Type": "application/json; charset=nonesuch"}, b"{"),
        ({}, b"[" * 60_000),
        ({"Content-Encoding": "gzip"}, b"no gzip"),
        ({}, b"\xff\xfe\xfa"),
        ({}, b'{"scheduler": ' + b"9" * 5000 + b"}"),
    ],
)
async def test_a_body_that_is_none_is_refused(promoting, session, headers, data):
    address = url(promoting, "/page/promote")
    headers = page_headers(promoting) | headers
    async with session.post(address, headers=headers, data=data) as response:
        assert response.status == 400
        assert '{"scheduler": "NAME"}' in await response.text()


async def test_only_schedulers_that_are_there_can_be_promoted(promoting, session):
    for name in ("default", "../default", "v9"):
        status, text = await post(promoting, session, page_headers(promoting), {"scheduler": name})
        assert (status, "accepted: none" in text) == (409, True)


async def test_it_promotes_as_the_command_does(promoting, session, run_dir):
    async with driven(promoting, run_dir, features=[pb.FEATURE_LANE_CONTROL]) as executor:
        member = pb.LaneMember(lane=0, scheduler_name="default", role=pb.LANE_ROLE_SHADOW)
        told = pb.LaneStatus(role=pb.LANE_ROLE_SHADOW, active_scheduler="v1", members=[member])
        await executor.stream.send(lane_status=told)
        async with session.get(url(promoting, "/page/events")) as events:
            while (await next_event(events))[1]["promotable"] != ["default"]:
                pass
        asked = asyncio.create_task(post(promoting, session, page_headers(promoting)))
        await _follow(executor)
        status, text = await asked
    (answer,) = json.loads(text)["executors"]
    assert status == 200
    assert answer["done"] is True
    assert (answer["active_scheduler"], answer["step_id"]) == ("default", 41)


async def _follow(executor: DrivenExecutor) -> None:
    request = await executor.stream.receive("lane_request")
    assert request.wish == pb.LANE_WISH_ACTIVATE
    reply = pb.LaneReply(
        request_id=request.request_id, done=True, active_scheduler="default", step_id=41
    )
    await executor.stream.send(lane_reply=reply)


def test_the_option_needs_a_page():
    with pytest.raises(ValidationError, match="no effect with http_address = off"):
        SchedulerConfig(page_promote=True, http_address="off")
