"""Decoders and drafters with random weights, small or in the shape of SmolLM2-135M."""

from __future__ import annotations

import torch
from specsched_executor.core import ModelConfig
from specsched_executor.drafters.dspark import DSparkCheckpoint, DSparkConfig, tensor_shapes
from specsched_executor.model import DecoderModel
from specsched_executor.model.linear import LinearFactory, LinearLayout
from specsched_executor.model.spec import DecoderSpec
from specsched_executor.model.weights import load_weights

SMALL = ModelConfig("small", 3, 96, 6, 2, 16, 128, 61, 256, 1e4, 1e-5, True, None, ())
SMOLLM2 = ModelConfig(
    "smollm2-shaped", 30, 576, 9, 3, 64, 1536, 49152, 2048, 1e5, 1e-5, True, None, ()
)


class RandomCheckpoint:
    """Weights from a seed, the same on every device."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.spec = DecoderSpec(config)
        self._generator = torch.Generator().manual_seed(seed)

    def tensor(self, name: str, out: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(out.shape, generator=self._generator)
        scale = 0.2 if "norm" in name else 1.5 * out.shape[-1] ** -0.5
        return out.copy_(noise * scale + ("norm" in name))


def random_decoder(
    config: ModelConfig, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> DecoderModel:
    checkpoint = RandomCheckpoint(config, seed)
    with torch.inference_mode():
        weights = load_weights(checkpoint, LinearFactory(LinearLayout.AUTO, dtype, device))
    return DecoderModel(checkpoint.spec, weights)


def random_drafter(
    target: ModelConfig, max_draft_tokens: int, *, window: int | None = 24, seed: int = 5
) -> DSparkCheckpoint:
    config = DSparkConfig(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        num_layers=2 if target.hidden_size < 500 else 3,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        intermediate_size=target.intermediate_size,
        block_size=max_draft_tokens,
        mask_token_id=1,
        target_layer_ids=(0, target.num_layers - 1),
        num_target_layers=target.num_layers,
        markov_rank=8 if target.hidden_size < 500 else 256,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        max_positions=4096,
        window=window,
        qk_norm=False,
    )
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: 1 + 0.2 * torch.randn(shape, generator=generator)
        if "norm" in name
        else shape[-1] ** -0.5 * torch.randn(shape, generator=generator)
        for name, shape in tensor_shapes(config).items()
    }
    return DSparkCheckpoint(config, {name: t.bfloat16() for name, t in tensors.items()})
