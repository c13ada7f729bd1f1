"""What a profile depends on, in one string."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import platform
from pathlib import Path

import torch

from specsched_executor.core import ModelConfig
from specsched_executor.profiling.options import ProfileOptions


def fingerprint(config: ModelConfig, dtype: str, drafter: str, options: ProfileOptions) -> str:
    """Hexadecimal digest over model, dtype, drafter, device, threads, sizes and versions.

    Two profiles with the same one were taken of the same thing; a cached profile with another is
    not used.
    """
    facts = {
        "model": dataclasses.asdict(config),
        "dtype": dtype,
        "drafter": drafter,
        "options": dataclasses.asdict(options),
        "device": _cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "versions": {
            name: importlib.metadata.version(name) for name in ("specsched", "torch", "numba")
        },
    }
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _cpu_name() -> str:
    """The processor as Linux names it; elsewhere, the machine type."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
