"""The GPU that torch would use, and whether the kernels can.

`python -m specsched_executor.gpu_facts` tells it as one line of JSON: torch, cuda (that torch is
built for, or null), gpu (its name, or null), refusal (why it cannot be served on, or null).
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass

import torch

__all__ = ["MIN_CAPABILITY", "GpuFacts", "find_gpu"]

MIN_CAPABILITY = (8, 0)
"""The first with matrix units for bfloat16, which the kernels multiply in."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The GPU that torch would use. capability: CUDA's compute capability, major and minor."""

    name: str
    capability: tuple[int, int]
    has_triton: bool

    @property
    def refusal(self) -> str | None:
        """Why the kernels cannot run on it; None where they can."""
        if self.capability < MIN_CAPABILITY:
            found, needed = ("{}.{}".format(*each) for each in (self.capability, MIN_CAPABILITY))
            return f"compute capability {found} is too old; accepted: {needed} or newer"
        return None if self.has_triton else "triton is not installed"


def find_gpu() -> GpuFacts | None:
    """The current CUDA device; None where torch sees none."""
    if not torch.cuda.is_available():
        return None
    return GpuFacts(
        torch.cuda.get_device_name(),
        torch.cuda.get_device_capability(),
        importlib.util.find_spec("triton") is not None,
    )


def _main() -> None:
    gpu = find_gpu()
    told = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": gpu and gpu.name,
        "refusal": gpu and gpu.refusal,
    }
    print(json.dumps(told))  # noqa: T201 - the output of the module


if __name__ == "__main__":
    _main()
