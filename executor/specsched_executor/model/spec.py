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


RopeScaling = Llama3RopeScaling | LinearRopeScaling | DividedRopeScaling


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer with grouped-query attention, SwiGLU and RMS norms.

    qk_norm: queries and keys pass an RMS norm per head before the rotary embedding (Qwen3).
    attention_bias: the q, k and v projections add a bias. attention_out_bias, mlp_bias: likewise
    for the output projection and for the three matrices of the feed-forward part.
    """

    config: ModelConfig
    qk_norm: bool = False
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    rope_scaling: RopeScaling | None = None


class Dtype(enum.StrEnum):
    """Precision of the weights and of the matrix products; everything else is float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
