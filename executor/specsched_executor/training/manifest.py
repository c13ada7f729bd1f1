"""What a checkpoint was made of."""

from __future__ import annotations

import platform
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from specsched_executor.training.corpus import Corpus
from specsched_executor.training.forced_metrics import ForcedMetrics
from specsched_executor.training.options import TrainOptions
from specsched_executor.training.prompts import Prompt
from specsched_executor.training.target import TrainingTarget

__all__ = ["build_manifest"]

_PACKAGES = ("specsched", "torch", "triton", "safetensors", "tokenizers")


def build_manifest(
    target: TrainingTarget,
    options: TrainOptions,
    *,
    prompts: list[Prompt],
    held_out: list[Prompt],
    corpus: Corpus,
    num_steps: int,
    metrics: ForcedMetrics | None,
) -> dict[str, Any]:
    """Target, data, options, versions and teacher-forced metrics; prompts by digest alone.

    num_steps: done so far. metrics: None while training goes on.
    """
    trained = Counter(prompt.source for prompt in prompts)
    trained.subtract(prompt.source for prompt in held_out)
    device = target.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "format": 1,
        "created": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "target": {
            "name": target.config.name,
            "num_layers": target.config.num_layers,
            "vocab_size": target.config.vocab_size,
            "dtype": str(target.dtype).removeprefix("torch."),
        },
        "text": {
            "num_sequences": corpus.num_sequences,
            "num_tokens": corpus.num_tokens,
            "num_answer_tokens": corpus.answer_tokens,
            "prompts_by_source": dict(sorted(trained.items())),
        },
        "held_out_prompts": {
            "rule": "int(sha256(text)[:8], 16) < held_out_share * 2^32",
            "num_by_source": dict(sorted(Counter(p.source for p in held_out).items())),
            "sha256": sorted(prompt.digest for prompt in held_out),
        },
        "options": options.to_json(),
        "num_steps_done": num_steps,
        "held_out_text": None if metrics is None else metrics.to_json(),
        "device": name,
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a checkout
            found[package] = "not installed"
    return found
