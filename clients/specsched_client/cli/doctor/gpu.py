"""The GPU, as the executor would see it.

torch is asked in a process of its own, through the entry-point group `specsched.checks`: it takes
seconds to load, and a driver that is broken may end or hang whoever asks it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from specsched_client.cli.doctor.findings import Code, Finding, Severity

__all__ = ["check_gpu", "gpu_nodes"]

_GROUP: Final = "specsched.checks"
_TIMEOUT_S: Final = 120.0
_DEV: Final = Path("/dev")


def gpu_nodes(dev: Path = _DEV) -> list[str]:
    """Names of the GPUs that the driver shows in `dev`."""
    return sorted(path.name for path in dev.glob("nvidia[0-9]*"))


def check_gpu(dev: Path = _DEV) -> list[Finding]:
    """Whether a GPU of this machine (nodes in `dev`) can be served on."""
    probe = next((each.value for each in entry_points(group=_GROUP) if each.name == "gpu"), None)
    if probe is None or importlib.util.find_spec("torch") is None:
        what = "torch is not installed: this environment can run schedulers, not executors"
        remedy = "for an executor: pip install 'specsched[executor]', on a GPU 'specsched[gpu]'"
        return [Finding(Code.GPU_NO_TORCH, Severity.NOTE, what, remedy)]
    told = _ask([sys.executable, "-m", probe])
    if isinstance(told, str):
        remedy = "see what the driver says: nvidia-smi, dmesg; serve with --device cpu until then"
        return [Finding(Code.GPU_UNUSABLE, Severity.ERROR, told, remedy)]
    return [_judge(told, gpu_nodes(dev))]


def _judge(told: dict[str, Any], nodes: list[str]) -> Finding:
    gpu, reason = told["gpu"], told["refusal"]
    if gpu is not None and reason is None:
        return Finding(Code.GPU, Severity.OK, f"{gpu} can be served on: --device auto")
    if gpu is not None:
        remedy = "pip install 'specsched[gpu]'" if "triton" in reason else "serve on the CPU"
        return Finding(Code.GPU_UNUSABLE, Severity.WARNING, f"{gpu}: {reason}", remedy)
    if not nodes:
        return Finding(Code.GPU, Severity.OK, "no GPU is here: executors serve on the CPU")
    what = f"{', '.join(nodes)} in /dev, but torch {told['torch']} sees no GPU"
    if told["cuda"] is None:
        what += ": it is built without CUDA"
        remedy = "install torch's CUDA build, as pytorch.org tells for this driver"
    else:
        remedy = (
            f"compare the driver (nvidia-smi) with CUDA {told['cuda']}, which torch is built for;"
            " look at CUDA_VISIBLE_DEVICES and the permissions of the nodes"
        )
    return Finding(Code.GPU_UNSEEN, Severity.ERROR, what, remedy)


def _ask(command: list[str]) -> dict[str, Any] | str:
    """What the probe tells; why it tells nothing."""
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, a module of an installed package
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"torch did not find out within {_TIMEOUT_S:.0f} s whether there is a GPU"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return f"torch failed (status {done.returncode}) when asked for a GPU: {last}"
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
