"""What a service tells systemd: that it is ready, what it does, that it is alive, that it ends.

The protocol is a datagram of `KEY=value` lines to the socket that `NOTIFY_SOCKET` names
(sd_notify(3)); the packages that speak it are unmaintained or compile against libsystemd. Leaf
module: standard library only. The environment is passed in, never read here.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Notifier", "feed_watchdog"]

_MAX_ADDRESS_BYTES = 107
_USEC = 1_000_000


@dataclass(frozen=True, slots=True)
class Notifier:
    """The supervisor of this process; without one every call does nothing.

    address: path of a datagram socket, or "@name" in the abstract namespace; empty: no supervisor.
    watchdog_s: time after which a service that said nothing is killed and restarted; None: never.
    """

    address: str = ""
    watchdog_s: float | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str], pid: int | None = None) -> Notifier:
        """Whom the environment names: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.

        An address of another kind (vsock), or one too long to exist, is nobody we can tell. A
        watchdog of another process (WATCHDOG_PID is not `pid`, by default ours) is not ours.
        """
        address = environ.get("NOTIFY_SOCKET", "")
        if address[:1] not in {"/", "@"} or len(os.fsencode(address)) > _MAX_ADDRESS_BYTES:
            return cls()
        watched = environ.get("WATCHDOG_PID") or str(os.getpid() if pid is None else pid)
        usec = environ.get("WATCHDOG_USEC", "")
        is_ours = watched == str(os.getpid() if pid is None else pid)
        has_limit = is_ours and usec.isascii() and usec.isdecimal() and int(usec) > 0
        return cls(address, int(usec) / _USEC if has_limit else None)

    def ready(self, status: str) -> bool:
        """The service does what it is for from now on. Returns whether anybody was told."""
        return self._tell("READY=1", _status(status))

    def status(self, status: str) -> bool:
        """One line for `systemctl status`."""
        return self._tell(_status(status))

    def alive(self) -> bool:
        """Begin the time of the watchdog anew."""
        return self._tell("WATCHDOG=1")

    def stopping(self, status: str) -> bool:
        """The service begins to end."""
        return self._tell("STOPPING=1", _status(status))

    def _tell(self, *lines: str) -> bool:
        if not self.address:
            return False
        # "@" stands for the zero byte that an abstract name begins with.
        address = "\0" + self.address[1:] if self.address[0] == "@" else self.address
        # A supervisor that went away or is busy must not take the service with it.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.setblocking(False)
            to.sendto("\n".join(lines).encode(), address)
            return True
        return False


async def feed_watchdog(notifier: Notifier, not_alive: Callable[[], str | None]) -> None:
    """Tell the watchdog that this process is alive, for as long as it is; never returns.

    not_alive: why only a new start can mend this process, None while nothing is wrong. It is asked
    three times in the time that the watchdog gives, on the event loop: a loop that hangs is told as
    well, by silence. Where nobody watches this only waits.
    """
    if notifier.watchdog_s is None:
        await asyncio.Event().wait()
        return
    while True:
        reason = not_alive()
        if reason is None:
            notifier.alive()
        else:
            notifier.status(reason)
        await asyncio.sleep(notifier.watchdog_s / 3)


def _status(text: str) -> str:
    return "STATUS=" + " ".join(text.split())
