"""Small random drafters, in DeepSpec's layout, for the random targets of the model tests."""

from __future__ import annotations

from dataclasses import replace

import torch
from specsched_executor.drafters.dspark import DSparkCheckpoint, DSparkConfig, tensor_shapes

from tests.executor.model.checkpoints import SIZES

CONFIG = DSparkConfig(
    vocab_size=SIZES["vocab_size"],
    hidden_size=SIZES["hidden_size"],
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=64,
    block_size=4,
    mask_token_id=1,
    target_layer_ids=(0, 2),
    num_target_layers=SIZES["num_hidden_layers"],
    markov_rank=8,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    max_positions=512,
    window=None,
    has_own_embeddings=True,
)


def random_checkpoint(config: DSparkConfig = CONFIG, seed: int = 5, **changes) -> DSparkCheckpoint:
    config = replace(config, **changes)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: 1 + 0.2 * torch.randn(shape, generator=generator)
        if "norm" in name
        else 0.3 * torch.randn(shape, generator=generator)
        for name, shape in tensor_shapes(config).items()
    }
    return DSparkCheckpoint(config, {name: t.bfloat16() for name, t in tensors.items()})
