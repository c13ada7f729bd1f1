"""Where a measurement was taken, and with what."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "describe_machine", "versions"]

_VERSIONED = ("specsched", "grpcio", "protobuf", "numpy", "numba", "torch")


@dataclass(frozen=True, slots=True)
class Machine:
    """`num_cpus` counts those that this process may run on."""

    cpu: str
    num_cpus: int
    memory_gib: float
    kernel: str


def describe_machine() -> Machine:
    """Facts of this machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=_cpu_model(),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_gib=round(pages / 2**30, 1),
        kernel=platform.release(),
    )


def versions() -> dict[str, str]:
    """Of python and of the installed libraries that matter to speed."""
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return match.group(1) if match else platform.machine()
