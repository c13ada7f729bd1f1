"""How the C library allocates the memory that a model on a CPU works in."""

from __future__ import annotations

import os
import sys
from typing import Final

import structlog
from specsched_protocol.ending import signals_blocked
from specsched_protocol.huge_pages import allocator_can_be_told

from specsched_executor._openmp import forget_waiting, wait_shortly

__all__ = ["start_anew_with_settings"]

_log = structlog.get_logger(__name__)

_VARIABLE: Final = "GLIBC_TUNABLES"
_SETTINGS: Final = {
    # Ask for huge pages: every weight is read at each step, and in pages of 4 KiB the walks through
    # the page tables take longer than the reads.
    "glibc.malloc.hugetlb": 1,
    # Keep what a step frees for the next one. Else the logits of some hundred rows, or whatever a
    # thread's own arena cannot hold, go back to the kernel and are zeroed page by page again.
    "glibc.malloc.arena_max": 1,
    "glibc.malloc.mmap_threshold": 1 << 30,
    "glibc.malloc.trim_threshold": 1 << 32,
}
_TOLD: Final = ":".join(f"{name}={value}" for name, value in _SETTINGS.items())


def start_anew_with_settings() -> None:
    """Put this program in its own place, with settings of the C library that suit a model.

    glibc reads them when a process begins, and libraries that pack weights for the processor have
    none of their own. On two cores of a virtual machine steps of SmolLM2-135M with 1, 16 and 48
    rows took 2.3, 2.0 and 2.2 times as long without huge pages; with those alone, on a thread that
    is not the first one, steps of 16, 48 and 512 rows another 1.3, 1.2 and 1.6 times as long.

    Returns where that was done before, and says so: the settings are then taken out of the
    environment again, since they suit none of the processes that this one starts. Returns as well
    where the user set one of them, whatever to, and where the C library knows no such settings.

    SIGTERM and SIGINT are blocked while it starts anew, so that they come to who takes them there.
    """
    given = os.environ.get(_VARIABLE, "")
    if given.endswith(_TOLD):
        _restore(given.removesuffix(_TOLD).removesuffix(":"))
        _log.info("started anew", why="huge pages, for faster steps", settings=_TOLD)
        return
    if (
        any(name in given for name in _SETTINGS)
        or not sys.executable
        or not allocator_can_be_told()
    ):
        return
    os.environ[_VARIABLE] = ":".join([*filter(None, [given]), _TOLD])
    forget_waiting()
    try:
        with signals_blocked():
            os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very program
    except OSError as error:
        _restore(given)
        wait_shortly()
        _log.warning("allocator left as it is", reason=str(error))


def _restore(given: str) -> None:
    if given:
        os.environ[_VARIABLE] = given
    else:
        del os.environ[_VARIABLE]
