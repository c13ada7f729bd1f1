"""From the command line's values to a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from specsched_executor.training.options import TrainOptions
from specsched_executor.training.prompts import read_prompts
from specsched_executor.training.run import TrainingRun
from specsched_executor.training.target import load_training_target

__all__ = ["run_training", "training_device"]


def run_training(
    options: TrainOptions,
    *,
    target_path: Path | None,
    prompt_paths: Sequence[Path],
    run_dir: Path,
    out: Path,
    device_name: str,
    max_seconds: float,
    say: Callable[[str], None],
) -> bool:
    """See TrainingRun.run. bfloat16 on CUDA, float32 on a CPU."""
    device = training_device(device_name)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target, tokenizer = load_training_target(
        target_path, device, dtype, options.generation.max_tokens
    )
    run = TrainingRun(
        run_dir,
        target,
        tokenizer,
        read_prompts(prompt_paths),
        options,
        max_seconds=max_seconds,
        say=say,
    )
    return run.run(out)


def training_device(name: str) -> torch.device:
    """auto: CUDA where there is one. Raises ValueError for a name that is none of the accepted."""
    if name not in {"auto", "cpu", "cuda"}:
        raise ValueError(f"device is {name!r}; accepted: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device is 'cuda', but torch sees no CUDA device; accepted here: auto, cpu"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
