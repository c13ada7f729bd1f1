"""config.json of the served architectures.

Both spellings of rotary settings are read: `rope_theta` and `rope_scaling` side by side, and
`rope_parameters`, which holds them both in newer folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specsched_executor.core import ModelConfig
from specsched_executor.model._errors import ModelFormatError, UnsupportedModelError
from specsched_executor.model.huggingface.facts import ConfigFacts
from specsched_executor.model.huggingface.json_file import read_json
from specsched_executor.model.spec import (
    DecoderSpec,
    LinearRopeScaling,
    Llama3RopeScaling,
    RopeScaling,
)

_ARCHITECTURES: Final = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}
_ROPE_TYPES: Final = ("default", "linear", "llama3")
_DEFAULT_THETA: Final = 10_000.0


def read_spec(folder: Path) -> DecoderSpec:
    """The decoder that a folder describes.

    Raises UnsupportedModelError, naming what is served, for anything this decoder would compute
    differently, and ModelFormatError for a missing or impossible value.
    """
    facts = ConfigFacts.read(folder / "config.json")
    return spec_of(facts, folder.resolve().name, _eos_token_ids(folder, facts.content))


def spec_of(facts: ConfigFacts, name: str, eos_token_ids: tuple[int, ...]) -> DecoderSpec:
    """The decoder that a configuration describes; raises as `read_spec` does."""
    family = _family(facts)
    facts.refuse_other("hidden_act", ("silu",), default="silu")
    facts.refuse_other("quantization_config", (None,))
    facts.refuse_other("use_sliding_window", (False, None))
    rope = facts.content.get("rope_parameters") or facts.content.get("rope_scaling") or {}
    has_bias = bool(facts.content.get("attention_bias", False))
    return DecoderSpec(
        config=_model_config(facts, rope, name, eos_token_ids),
        qk_norm=family == "qwen3",
        attention_bias=has_bias,
        attention_out_bias=has_bias,
        mlp_bias=family == "llama" and bool(facts.content.get("mlp_bias", False)),
        rope_scaling=_rope_scaling(facts.path, rope),
    )


def _family(facts: ConfigFacts) -> str:
    names = facts.content.get("architectures") or [facts.content.get("model_type")]
    for name in names:
        if name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
    if names == [facts.content.get("model_type")] and names[0] in _ARCHITECTURES.values():
        return str(names[0])
    raise UnsupportedModelError(
        f"{facts.path}: architecture {', '.join(map(str, names))}; "
        f"served: {', '.join(_ARCHITECTURES)}"
    )


def _model_config(
    facts: ConfigFacts, rope: Mapping[str, Any], name: str, eos_token_ids: tuple[int, ...]
) -> ModelConfig:
    num_heads = facts.integer("num_attention_heads")
    hidden_size = facts.integer("hidden_size")
    num_kv_heads = facts.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelFormatError(
            f"{facts.path}: {num_heads} attention heads are no multiple of {num_kv_heads} kv heads"
        )
    return ModelConfig(
        name=name,
        num_layers=facts.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=facts.integer("head_dim", hidden_size // num_heads),
        intermediate_size=facts.integer("intermediate_size"),
        vocab_size=facts.integer("vocab_size"),
        max_context_tokens=facts.integer("max_position_embeddings"),
        rope_theta=float(rope.get("rope_theta") or facts.number("rope_theta", _DEFAULT_THETA)),
        rms_norm_eps=float(facts.number("rms_norm_eps", 1e-6)),
        tie_word_embeddings=bool(facts.content.get("tie_word_embeddings", False)),
        bos_token_id=facts.content.get("bos_token_id"),
        eos_token_ids=eos_token_ids,
    )


def _eos_token_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Of generation_config.json, then of config.json; either may hold one id or a list."""
    path = folder / "generation_config.json"
    sources = ([read_json(path)] if path.is_file() else []) + [dict(config)]
    tokens: list[int] = []
    for source in sources:
        value = source.get("eos_token_id")
        tokens.extend(value if isinstance(value, list) else [] if value is None else [value])
    return tuple(dict.fromkeys(int(token) for token in tokens))


def _rope_scaling(path: Path, rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPE_TYPES:
        raise UnsupportedModelError(
            f"{path}: RoPE scaling {kind!r}; served: {', '.join(_ROPE_TYPES)}"
        )
    try:
        if kind == "linear":
            return LinearRopeScaling(float(rope["factor"]))
        if kind == "llama3":
            return Llama3RopeScaling(
                factor=float(rope["factor"]),
                low_freq_factor=float(rope["low_freq_factor"]),
                high_freq_factor=float(rope["high_freq_factor"]),
                original_max_position=int(rope["original_max_position_embeddings"]),
            )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(
            f"{path}: RoPE scaling {kind!r} lacks or misstates {error}"
        ) from error
    return None
