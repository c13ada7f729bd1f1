"""config.json of the served architectures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specsched_executor.core import ModelConfig
from specsched_executor.model._errors import ModelFormatError, UnsupportedModelError
from specsched_executor.model.huggingface.deepseek import deepseek_spec
from specsched_executor.model.huggingface.facts import ConfigFacts
from specsched_executor.model.huggingface.fp8_blocks import block_shape
from specsched_executor.model.huggingface.json_file import read_json
from specsched_executor.model.huggingface.rope import read_rope
from specsched_executor.model.spec import DecoderSpec

_ARCHITECTURES: Final = {
    "LlamaForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
}
_ROPE_KINDS: Final = {
    "llama": ("default", "linear", "llama3"),
    "qwen3": ("default", "linear", "llama3"),
    "deepseek_v32": ("default", "yarn"),
}


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
    facts.refuse_other("use_sliding_window", (False, None))
    block_shape(facts)
    rope = read_rope(facts, _ROPE_KINDS[family])
    config = _model_config(facts, name, eos_token_ids, rope.theta)
    if family == "deepseek_v32":
        return deepseek_spec(facts, config, rope)
    has_bias = bool(facts.content.get("attention_bias", False))
    return DecoderSpec(
        config=config,
        qk_norm=family == "qwen3",
        attention_bias=has_bias,
        attention_out_bias=has_bias,
        mlp_bias=family == "llama" and bool(facts.content.get("mlp_bias", False)),
        rope_scaling=rope.scaling,
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
    facts: ConfigFacts, name: str, eos_token_ids: tuple[int, ...], rope_theta: float
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
        rope_theta=rope_theta,
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
