"""A dspark drafter with random weights for a preset, to measure what drafting for it costs.

python -m scripts.prove.random_drafter qwen3-8b FOLDER

It has three layers of the target's own sizes, reads up to five of the target's layers and looks
back 128 tokens, like the drafter that ships; embeddings and head are the target's. Where the
target's attention is latent, the drafter has grouped heads of 128.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from specsched_executor.drafters.dspark import DSparkConfig, save_checkpoint, tensor_shapes
from specsched_executor.presets import PRESETS

__all__ = ["drafter_config", "write_random_drafter"]

_NUM_LAYERS = 3
_NUM_CONTEXT_LAYERS = 5
_HEAD_DIM = 128
_HEADS_PER_KV_HEAD = 8


def drafter_config(target: Mapping[str, Any]) -> DSparkConfig:
    """The shape of a drafter for a target with this config.json."""
    num_layers = target["num_hidden_layers"]
    middles = (2 * i + 1 for i in range(_NUM_CONTEXT_LAYERS))
    layers = sorted({middle * num_layers // (2 * _NUM_CONTEXT_LAYERS) for middle in middles})
    num_heads, num_kv_heads, head_dim = _heads(target)
    return DSparkConfig(
        vocab_size=target["vocab_size"],
        hidden_size=target["hidden_size"],
        num_layers=_NUM_LAYERS,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
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


def _heads(target: Mapping[str, Any]) -> tuple[int, int, int]:
    """Heads of queries, heads of keys, and their width."""
    hidden, num_heads = target["hidden_size"], target["num_attention_heads"]
    if "kv_lora_rank" not in target:
        return (
            num_heads,
            target["num_key_value_heads"],
            target.get("head_dim") or hidden // num_heads,
        )
    num_heads = max(hidden // _HEAD_DIM, 1)
    num_kv_heads = max(num_heads // _HEADS_PER_KV_HEAD, 1)
    return num_heads, num_kv_heads, min(hidden, _HEAD_DIM)


def write_random_drafter(preset: str, folder: Path) -> int:
    """Write the checkpoint and return how many numbers it holds.

    They are drawn on the GPU where there is one, since a large one has billions.
    """
    config = drafter_config(PRESETS[preset])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    tensors = {
        name: torch.ones(shape, dtype=torch.bfloat16)
        if "norm" in name
        else (torch.randn(shape, device=device, generator=generator) * shape[-1] ** -0.5)
        .bfloat16()
        .cpu()
        for name, shape in tensor_shapes(config).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_checkpoint(folder, config, tensors)
    return sum(tensor.numel() for tensor in tensors.values())


def main() -> int:
    """Write the checkpoint and say how large it is."""
    folder = Path(sys.argv[2])
    print(f"{write_random_drafter(sys.argv[1], folder):,} numbers in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
