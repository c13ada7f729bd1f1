"""Work of the event loop that its end does not wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

__all__ = ["in_daemon_thread"]


async def in_daemon_thread(work: Callable[[], None], *, name: str) -> None:
    """Await `work` in a thread of its own; a cancelled wait leaves it running.

    `asyncio.to_thread` would not do: the loop, and then the interpreter, wait for its threads.
    """
    loop = asyncio.get_running_loop()
    end: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if end.cancelled():
            return
        if error is None:
            end.set_result(None)
        else:
            end.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as caught:  # noqa: BLE001 - raised where it is awaited
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    await end
