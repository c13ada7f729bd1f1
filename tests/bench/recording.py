"""Write a measurement as JSON with all that is needed to judge and repeat it.

One file per bench and machine, `<bench>.<machine>.json`; a later run on the same machine replaces
it and the history stays in git. Format: docs/benchmarks/README.md.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_client.bench.machine import describe_machine as describe_host

REPOSITORY = Path(__file__).resolve().parents[2]
RAW_DIRECTORY = REPOSITORY / "docs" / "benchmarks" / "raw"
VERSIONED = ("numpy", "numba", "grpcio", "protobuf", "torch", "triton")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a measurement was taken. `num_cpus` counts those this process may run on."""

    cpu: str
    num_cpus: int
    memory_gib: float
    kernel: str
    accelerator: str | None

    @property
    def tag(self) -> str:
        """Part of a file name: the accelerator where there is one, else the CPU and its count."""
        name = self.accelerator or f"{self.cpu}-{self.num_cpus}cpu"
        name = re.sub(r"\((r|tm)\)|\bcpu\b(?=.*@)|@.*?ghz", "", name.lower())
        return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def describe_machine() -> Machine:
    """Read the facts of this machine; the accelerator is asked of torch, where installed."""
    return Machine(**{**asdict(describe_host()), "accelerator": _accelerator()})


def percentiles(samples: Sequence[float] | npt.NDArray[np.floating[Any]]) -> dict[str, float]:
    """Return num_samples and min, p10, p50, p90, p99, max of `samples`, in their own unit."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no samples to summarise")
    quantiles = np.percentile(values, [0, 10, 50, 90, 99, 100])
    names = ("min", "p10", "p50", "p90", "p99", "max")
    return {"num_samples": int(values.size)} | {
        name: float(f"{value:.6g}") for name, value in zip(names, quantiles, strict=True)
    }


def write_record(
    bench: str,
    results: Sequence[Mapping[str, Any]],
    *,
    settings: Mapping[str, Any] | None = None,
    command: str,
    directory: Path = RAW_DIRECTORY,
) -> Path:
    """Write `results` (one mapping per measured case, units in the key names) and return the file.

    `settings` holds what all cases share; `command` is what a reader types to repeat the run.
    """
    if not re.fullmatch(r"[a-z0-9_]+", bench):
        raise ValueError(f"bench name {bench!r}: use lower case letters, digits and underscores")
    if not results:
        raise ValueError(f"bench {bench!r} has no results to record")
    machine = describe_machine()
    record = {
        "bench": bench,
        "command": command,
        "recorded_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "source": _source_state(),
        "machine": asdict(machine),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "versions": _versions(),
        "settings": dict(settings or {}),
        "results": [dict(result) for result in results],
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{bench}.{machine.tag}.json"
    path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path


def _accelerator() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _source_state() -> dict[str, Any]:
    """Commit of the checkout, and whether tracked files outside docs/ were changed since."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "modified": None}
    return {"commit": commit, "modified": bool(changed)}


def _git(*args: str) -> str:
    done = subprocess.run(
        ["git", *args], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
