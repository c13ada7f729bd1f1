"""Rotary settings of a config.json.

Both spellings are read: `rope_theta` and `rope_scaling` side by side, and `rope_parameters`, which
holds them both in newer folders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from specsched_executor.model._errors import ModelFormatError, UnsupportedModelError
from specsched_executor.model.huggingface.facts import ConfigFacts
from specsched_executor.model.spec import (
    LinearRopeScaling,
    Llama3RopeScaling,
    RopeScaling,
    YarnRopeScaling,
)

__all__ = ["RopeFacts", "read_rope"]

_DEFAULT_THETA: Final = 10_000.0


@dataclass(frozen=True, slots=True)
class RopeFacts:
    """theta, and how its frequencies are scaled. softmax_factor: what the scaling multiplies the
    logits of latent attention with; 1.0 where it says nothing of it.
    """

    theta: float
    scaling: RopeScaling | None
    softmax_factor: float = 1.0


def read_rope(facts: ConfigFacts, kinds: tuple[str, ...]) -> RopeFacts:
    """The settings of a configuration, of one of these kinds.

    Raises UnsupportedModelError for another kind and ModelFormatError for what one lacks.
    """
    rope = facts.content.get("rope_parameters") or facts.content.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or facts.number("rope_theta", _DEFAULT_THETA))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in kinds:
        raise UnsupportedModelError(
            f"{facts.path}: RoPE scaling {kind!r}; served: {', '.join(kinds)}"
        )
    try:
        scaling = _scaling(kind, rope)
        factor = _mscale(rope, "mscale_all_dim") ** 2 if kind == "yarn" else 1.0
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(
            f"{facts.path}: RoPE scaling {kind!r} lacks or misstates {error}"
        ) from error
    return RopeFacts(theta, scaling, factor)


def _scaling(kind: str, rope: Mapping[str, Any]) -> RopeScaling | None:
    if kind == "linear":
        return LinearRopeScaling(float(rope["factor"]))
    if kind == "llama3":
        return Llama3RopeScaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_max_position=int(rope["original_max_position_embeddings"]),
        )
    if kind == "yarn":
        return YarnRopeScaling(
            factor=float(rope["factor"]),
            original_max_position=int(rope["original_max_position_embeddings"]),
            beta_fast=float(rope.get("beta_fast") or 32.0),
            beta_slow=float(rope.get("beta_slow") or 1.0),
            amplitude=_amplitude(rope),
        )
    return None


def _amplitude(rope: Mapping[str, Any]) -> float:
    """As given, else the ratio of both scales, else YaRN's own."""
    given = rope.get("attention_factor")
    if given is not None:
        return float(given)
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return _mscale(rope, "mscale") / _mscale(rope, "mscale_all_dim")
    return _mscale({**rope, "mscale": 1.0}, "mscale")


def _mscale(rope: Mapping[str, Any], key: str) -> float:
    """0.1 m ln(factor) + 1 with m under `key`; 1.0 where it is 0 or missing."""
    return 0.1 * float(rope.get(key) or 0.0) * math.log(max(float(rope["factor"]), 1.0)) + 1.0
