"""Where a measurement was taken, and with what."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "describe_machine", "versions"]

_VERSIONED = ("specsched", "grpcio", "protobuf", "numpy", "numba", "torch")


@dataclass(frozen=True, slots=True)
class Machine:
    """num_cpus: those that this process may run on. accelerator: None where none is found."""

    cpu: str
    num_cpus: int
    memory_gib: float
    kernel: str
    accelerator: str | None


def describe_machine() -> Machine:
    """Facts of this machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=_cpu_model(),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_gib=round(pages / 2**30, 1),
        kernel=platform.release(),
        accelerator=_accelerator(),
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
    return _fact(Path("/proc/cpuinfo"), "model name") or platform.machine()


def _accelerator() -> str | None:
    """The NVIDIA cards that the driver lists, e.g. "2x NVIDIA H200"."""
    listed = Path("/proc/driver/nvidia/gpus").glob("*/information")
    counted = Counter(name for path in listed if (name := _fact(path, "Model")))
    names = [f"{count}x {name}" if count > 1 else name for name, count in sorted(counted.items())]
    return ", ".join(names) or None


def _fact(path: Path, name: str) -> str | None:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    match = re.search(rf"^{name}\s*:\s*(.+?)\s*$", text, flags=re.MULTILINE)
    return match.group(1) if match else None
