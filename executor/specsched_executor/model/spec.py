"""What a decoder needs to be built, beyond the shape facts the engine sees."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from specsched_executor.core import ModelConfig


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Frequency scaling of Llama 3.1 and later (`rope_type` "llama3" in config.json).

    Frequencies with a wavelength above original_max_position / low_freq_factor are divided by
    `factor`, those below original_max_position / high_freq_factor are kept, and the band between is
    interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class LinearRopeScaling:
    """Position interpolation: every frequency is divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class DividedRopeScaling:
    """Frequency i is divided by divisors[i]; how GGUF files state the scaling of Llama 3."""

    divisors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class YarnRopeScaling:
    """YaRN (arXiv 2309.00071): slow dimensions are interpolated, fast ones kept, a ramp between.

    A dimension is fast that turns at least beta_fast times in original_max_position tokens, slow
    one that turns at most beta_slow times. amplitude: what cosines and sines are multiplied by.
    """

    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float
    amplitude: float = 1.0


RopeScaling = Llama3RopeScaling | LinearRopeScaling | DividedRopeScaling | YarnRopeScaling


@dataclass(frozen=True, slots=True)
class SparseMlaSpec:
    """Multi-head latent attention over tokens that a lightning indexer picks (DeepSeek-V3.2).

    A query head has nope_head_dim dimensions without and rope_head_dim with positions; the cache
    holds kv_lora_rank + rope_head_dim numbers a token, which all heads share. The indexer scores
    with index_heads heads of index_head_dim dimensions; the index_topk best tokens are attended to.
    """

    q_lora_rank: int
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    value_head_dim: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    softmax_scale: float

    @property
    def entry_dim(self) -> int:
        """Numbers a token leaves in the latent cache."""
        return self.kv_lora_rank + self.rope_head_dim


@dataclass(frozen=True, slots=True)
class MixtureSpec:
    """A mixture of experts in place of the feed-forward part of layers from first_layer on.

    Experts come in num_groups groups, of which a token may use groups_per_token: those whose two
    best experts score most. It takes the experts_per_token best there, with their scores as weights
    (summing to one if `normalizes`) times scaling_factor. Beside them a dense part of
    shared_size sees every token; 0: there is none.
    """

    first_layer: int
    num_experts: int
    experts_per_token: int
    num_groups: int
    groups_per_token: int
    normalizes: bool
    scaling_factor: float
    expert_size: int
    shared_size: int


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer with SwiGLU and RMS norms.

    qk_norm: queries and keys pass an RMS norm per head before the rotary embedding (Qwen3).
    attention_bias: the q, k and v projections add a bias. attention_out_bias, mlp_bias: likewise
    for the output projection and for the three matrices of the feed-forward part. sparse_mla: its
    attention; None for grouped-query attention. mixture: its experts, if it has any.
    """

    config: ModelConfig
    qk_norm: bool = False
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    rope_scaling: RopeScaling | None = None
    sparse_mla: SparseMlaSpec | None = None
    mixture: MixtureSpec | None = None


class Dtype(enum.StrEnum):
    """Precision of the weights and of the matrix products; everything else is float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
