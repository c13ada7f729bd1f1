"""Whether an executor on the processor can have huge pages for its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from specsched_protocol.huge_pages import MODE_FILE, allocator_can_be_told, huge_page_mode

from specsched_client.cli.doctor.findings import Code, Finding, Severity

__all__ = ["check_huge_pages"]

_COST: Final = "an executor on the CPU may take twice as long for a step"


def check_huge_pages(
    mode_file: Path = MODE_FILE, can_be_told: Callable[[], bool] = allocator_can_be_told
) -> Finding:
    """By the kernel's setting in `mode_file`, and whether the C library can be told to ask."""
    mode = huge_page_mode(mode_file)
    if mode is None:
        what = f"{mode_file} does not say whether this kernel has transparent huge pages"
        remedy = f"run executors on a kernel that has them: without, {_COST}"
        return Finding(Code.HUGE_PAGES_UNKNOWN, Severity.NOTE, what, remedy)
    if mode == "never":
        what = f"this kernel gives no huge pages to anybody: {_COST}"
        remedy = (
            f"as root: echo madvise > {mode_file} (to keep it: transparent_hugepage=madvise on the"
            " kernel's command line); then restart the executor"
        )
        return Finding(Code.HUGE_PAGES_NEVER, Severity.WARNING, what, remedy)
    if mode == "madvise" and not can_be_told():
        what = f"huge pages are for who asks, and this C library does not: {_COST}"
        remedy = f"run executors on glibc 2.35 or newer; or as root: echo always > {mode_file}"
        return Finding(Code.HUGE_PAGES_NOT_ASKED_FOR, Severity.WARNING, what, remedy)
    what = f"an executor on the CPU gets huge pages ({mode})"
    return Finding(Code.HUGE_PAGES, Severity.OK, what)
