"""config.json of a DSpark drafter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specsched_executor.drafters.dspark._errors import DrafterCheckpointError

__all__ = ["CONFIG_FILE", "DSparkConfig"]

CONFIG_FILE: Final = "config.json"
_ARCHITECTURES: Final = {"Qwen3DSparkModel": True, "LlamaDSparkModel": False}
"""Class name -> whether queries and keys pass an RMS norm per head."""
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class DSparkConfig:
    """Shape of a drafter (arXiv 2607.05147, section 3.1) as DeepSpec's config.json states it.

    block_size: draft positions, k. target_layer_ids: layers of the target whose outputs (before the
    final norm) are its context, 0 the first. window: context tokens seen, those strictly before the
    anchor; None: all. qk_norm: of queries and keys. has_own_embeddings: whether the checkpoint
    holds `embed_tokens` and `lm_head`; else they are the target's (`"embeddings": "target"`).
    max_positions: rotary positions. Raises DrafterCheckpointError for impossible sizes.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    markov_rank: int
    rope_theta: float
    rms_norm_eps: float
    max_positions: int
    window: int | None = None
    qk_norm: bool = True
    has_own_embeddings: bool = False

    def __post_init__(self) -> None:
        for name in ("num_layers", "block_size", "markov_rank", "num_kv_heads", "hidden_size"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        layers = self.target_layer_ids
        rising = list(layers) == sorted(set(layers))
        inside = all(0 <= layer < self.num_target_layers for layer in layers)
        accepted = f"rising layers of 0 to {self.num_target_layers - 1}"
        _require(bool(layers) and rising and inside, "target_layer_ids", layers, accepted)
        inside = 0 <= self.mask_token_id < self.vocab_size
        _require(inside, "mask_token_id", self.mask_token_id, f"below {self.vocab_size}")
        divides = self.num_heads % self.num_kv_heads == 0
        _require(divides, "num_attention_heads", self.num_heads, "a multiple of the KV heads")
        is_window = self.window is None or self.window >= 1
        _require(is_window, "sliding_window", self.window, "1 or more, or null")

    @classmethod
    def read(cls, folder: Path) -> DSparkConfig:
        """From `folder`/config.json."""
        path = folder / CONFIG_FILE
        try:
            fields = json.loads(path.read_text())
        except OSError as error:
            raise DrafterCheckpointError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise DrafterCheckpointError(f"{path} is no JSON: {error}") from error
        try:
            return cls.from_json(fields)
        except DrafterCheckpointError as error:
            raise DrafterCheckpointError(f"{path}: {error}") from error

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> DSparkConfig:
        """Raises DrafterCheckpointError for a field that is missing or not served."""
        architecture = _field(fields, "architectures")[0]
        accepted = ", ".join(_ARCHITECTURES)
        _require(architecture in _ARCHITECTURES, "architectures", architecture, accepted)
        _expect(fields, "enable_confidence_head", True)
        _expect(fields, "confidence_head_with_markov", True)
        _expect(fields, "markov_head_type", "vanilla")
        _expect(fields, "attention_bias", False, default=False)
        embeddings = fields.get("embeddings", "own")
        _require(embeddings in {"own", "target"}, "embeddings", embeddings, "own or target")
        heads = int(_field(fields, "num_attention_heads"))
        hidden_size = int(_field(fields, "hidden_size"))
        num_layers = int(_field(fields, "num_hidden_layers"))
        return cls(
            vocab_size=int(_field(fields, "vocab_size")),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=int(fields.get("num_key_value_heads", heads)),
            head_dim=int(fields.get("head_dim") or hidden_size // heads),
            intermediate_size=int(_field(fields, "intermediate_size")),
            block_size=int(_field(fields, "block_size")),
            mask_token_id=int(_field(fields, "mask_token_id")),
            target_layer_ids=tuple(int(layer) for layer in _field(fields, "target_layer_ids")),
            num_target_layers=int(_field(fields, "num_target_layers")),
            markov_rank=int(_field(fields, "markov_rank")),
            rope_theta=_rope_theta(fields),
            rms_norm_eps=float(_field(fields, "rms_norm_eps")),
            max_positions=int(_field(fields, "max_position_embeddings")),
            window=_window(fields, num_layers),
            qk_norm=_ARCHITECTURES[architecture],
            has_own_embeddings=embeddings == "own",
        )

    def to_json(self) -> dict[str, Any]:
        """The fields of config.json."""
        kind = _FULL if self.window is None else _SLIDING
        fields: dict[str, Any] = {
            "architectures": ["Qwen3DSparkModel" if self.qk_norm else "LlamaDSparkModel"],
            "model_type": "qwen3" if self.qk_norm else "llama",
            "attention_bias": False,
            "block_size": self.block_size,
            "confidence_head_with_markov": True,
            "dtype": "bfloat16",
            "enable_confidence_head": True,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "layer_types": [kind] * self.num_layers,
            "markov_head_type": "vanilla",
            "markov_rank": self.markov_rank,
            "mask_token_id": self.mask_token_id,
            "max_position_embeddings": self.max_positions,
            "num_attention_heads": self.num_heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.num_kv_heads,
            "num_target_layers": self.num_target_layers,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "sliding_window": self.window,
            "target_layer_ids": list(self.target_layer_ids),
            "tie_word_embeddings": False,
            "vocab_size": self.vocab_size,
        }
        return fields if self.has_own_embeddings else {**fields, "embeddings": "target"}


def _require(holds: bool, name: str, value: object, accepted: str) -> None:
    if not holds:
        raise DrafterCheckpointError(f"{name} is {value!r}; accepted: {accepted}")


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise DrafterCheckpointError(f"{name} is missing")
    return fields[name]


def _expect(fields: Mapping[str, Any], name: str, accepted: object, **default: object) -> None:
    value = fields.get(name, default["default"]) if default else _field(fields, name)
    _require(value == accepted, name, value, repr(accepted))


def _rope_theta(fields: Mapping[str, Any]) -> float:
    parameters = fields.get("rope_parameters") or {}
    scaling = fields.get("rope_scaling") or parameters
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    _require(kind == "default", "rope_scaling", kind, "none")
    return float(parameters.get("rope_theta") or _field(fields, "rope_theta"))


def _window(fields: Mapping[str, Any], num_layers: int) -> int | None:
    kinds = set(fields.get("layer_types") or [_FULL] * num_layers)
    _require(len(kinds) == 1 and kinds <= {_FULL, _SLIDING}, "layer_types", kinds, "all of one")
    return int(_field(fields, "sliding_window")) if kinds == {_SLIDING} else None
