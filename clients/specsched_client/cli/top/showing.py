"""Frames one after the other, on a terminal each in place of the last."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from typing import Self

from rich.live import Live
from specsched_protocol.console import to_stdout

from specsched_client.cli._console import print_json
from specsched_client.cli.top.feed import Feed, Reading
from specsched_client.cli.top.figures import make_frame
from specsched_client.cli.top.frame import Frame
from specsched_client.cli.top.view import draw

__all__ = ["show_frames"]


def show_frames(feed: Feed, *, interval_s: float, count: int | None, as_json: bool) -> Frame | None:
    """Show `count` frames, without one until SIGINT or SIGTERM; the last one that was shown."""
    with _Printer(as_json=as_json) as show:
        return asyncio.run(_run(feed, show, interval_s, count))


class _Printer:
    """Puts frames on stdout; a context manager that leaves a terminal as it was."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = to_stdout()
        is_live = self._console.is_terminal and not as_json
        self._live = (
            Live(console=self._console, screen=True, auto_refresh=False) if is_live else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, frame: Frame) -> None:
        """Show a frame."""
        if self._as_json:
            print_json(dataclasses.asdict(frame))
        elif self._live is not None:
            self._live.update(draw(frame), refresh=True)
        else:
            self._console.print(draw(frame))
            self._console.print()


async def _run(feed: Feed, show: _Printer, interval_s: float, count: int | None) -> Frame | None:
    """Show `count` frames or until told to end; the last one."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    frame: Frame | None = None
    num_shown = 0
    async with feed:
        before: Reading = await feed.read()
        while not await _came(stop, interval_s):
            now = await feed.read()
            frame = make_frame(now, before)
            show(frame)
            before = now
            num_shown += 1
            if num_shown == count:
                break
    return frame


async def _came(event: asyncio.Event, within_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), within_s)
    except TimeoutError:
        return False
    return True
