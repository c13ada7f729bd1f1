"""What the model runs on."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import torch
from specsched_protocol.settings import MissingPackageError

from specsched_executor.config import ExecutorConfig
from specsched_executor.gpu_facts import MIN_CAPABILITY, GpuFacts, find_gpu

__all__ = ["GpuFacts", "choose_device", "find_gpu"]

_log = structlog.get_logger(__name__)


def choose_device(
    config: ExecutorConfig, find: Callable[[], GpuFacts | None] = find_gpu
) -> ExecutorConfig:
    """`config` with the device it means on this machine: "cpu" or "cuda".

    A GPU too old for the kernels is left alone, with a warning. Raises ValueError where cuda is
    asked for and there is no GPU, MissingPackageError where there is no Triton.
    """
    if config.device == "cpu":
        return config
    gpu = find()
    if config.device == "cuda":
        if gpu is None:
            raise ValueError(
                f"device = cuda, but torch {torch.__version__} sees no CUDA device; accepted here:"
                " auto or cpu"
            )
        if not gpu.has_triton:
            raise MissingPackageError(
                "device = cuda needs triton, which is not installed: pip install 'specsched[gpu]'"
            )
    device = "cuda" if gpu is not None and _can_run(gpu) else "cpu"
    if device == "cpu":
        if config.acceptance_trace is not None:
            raise ValueError("acceptance_trace needs a GPU, and none can be used here: drop it")
        # What applies to a GPU alone has nothing to apply to.
        return config.model_copy(
            update={
                "device": device,
                "enforce_eager": False,
                "capture_sizes": [],
                "indexer_layout": "auto",
            }
        )
    return config.model_copy(update={"device": device})


def _can_run(gpu: GpuFacts) -> bool:
    """Whether the kernels can use it; logs why not."""
    if gpu.capability < MIN_CAPABILITY:
        _log.warning(
            "the GPU is too old: serving on the CPU",
            gpu=gpu.name,
            compute_capability="{}.{}".format(*gpu.capability),
            accepted="{}.{} or newer".format(*MIN_CAPABILITY),
        )
        return False
    if not gpu.has_triton:
        _log.warning(
            "triton is not installed: serving on the CPU",
            gpu=gpu.name,
            remedy="pip install 'specsched[gpu]'",
        )
        return False
    return True
