"""Trained drafters that come with the package, one folder for each target."""

from __future__ import annotations

import json
from pathlib import Path

from specsched_executor.core import ModelConfig

__all__ = ["shipped_checkpoint"]

_FOLDER = Path(__file__).parent


def shipped_checkpoint(target: ModelConfig) -> Path | None:
    """The folder of the drafter trained for `target`, told by the model's name and shape.

    A fine-tuned model under another name gets none: its acceptance would be anyone's guess.
    """
    for manifest in sorted(_FOLDER.glob("*/manifest.json")):
        trained_for = json.loads(manifest.read_text())["target"]
        shape = (target.name, target.num_layers, target.vocab_size)
        if shape == tuple(trained_for[key] for key in ("name", "num_layers", "vocab_size")):
            return manifest.parent
    return None
