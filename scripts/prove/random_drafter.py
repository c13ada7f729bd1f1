"""A dspark drafter with random weights for a preset, to measure what drafting for it costs.

python -m scripts.prove.random_drafter qwen3-8b FOLDER

It has three layers of the target's own sizes, reads five of the target's layers and looks back 128
tokens, like the drafter that ships; embeddings and head are the target's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from specsched_executor.drafters.dspark import DSparkConfig, save_checkpoint, tensor_shapes
from specsched_executor.presets import PRESETS

__all__ = ["drafter_config"]

_NUM_LAYERS = 3
_NUM_CONTEXT_LAYERS = 5


def drafter_config(target: Mapping[str, Any]) -> DSparkConfig:
    """The shape of a drafter for a target with this config.json."""
    num_layers = target["num_hidden_layers"]
    middles = (2 * i + 1 for i in range(_NUM_CONTEXT_LAYERS))
    layers = sorted({middle * num_layers // (2 * _NUM_CONTEXT_LAYERS) for middle in middles})
    return DSparkConfig(
        vocab_size=target["vocab_size"],
        hidden_size=target["hidden_size"],
        num_layers=_NUM_LAYERS,
        num_heads=target["num_attention_heads"],
        num_kv_heads=target["num_key_value_heads"],
        head_dim=target.get("head_dim") or target["hidden_size"] // target["num_attention_heads"],
        intermediate_size=target["intermediate_size"],
        block_size=7,
        mask_token_id=0,
        target_layer_ids=tuple(layers),
        num_target_layers=num_layers,
        markov_rank=256,
        rope_theta=target["rope_theta"],
        rms_norm_eps=target["rms_norm_eps"],
        max_positions=target["max_position_embeddings"],
        window=128,
    )


def main() -> int:
    """Write the checkpoint; drawn on the GPU where there is one, since a large one has billions."""
    preset, folder = sys.argv[1], Path(sys.argv[2])
    config = drafter_config(PRESETS[preset])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    tensors = {
        name: torch.ones(shape, dtype=torch.bfloat16)
        if "norm" in name
        else (torch.randn(shape, device=device) * shape[-1] ** -0.5).bfloat16().cpu()
        for name, shape in tensor_shapes(config).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_checkpoint(folder, config, tensors)
    print(f"{sum(t.numel() for t in tensors.values()):,} numbers in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
