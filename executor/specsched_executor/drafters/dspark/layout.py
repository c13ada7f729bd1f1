"""Names and shapes of the tensors of a DSpark checkpoint."""

from __future__ import annotations

from typing import Final

from specsched_executor.drafters.dspark.config import DSparkConfig

__all__ = ["EMBEDDINGS", "tensor_shapes"]

EMBEDDINGS: Final = ("embed_tokens.weight", "lm_head.weight")


def tensor_shapes(config: DSparkConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape, matrices [out, in], as DeepSpec saves them (dspark_qwen3_4b_block7)."""
    hidden, vocab, rank = config.hidden_size, config.vocab_size, config.markov_rank
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(config.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "markov_head.markov_w1.weight": (vocab, rank),
        "markov_head.markov_w2.weight": (vocab, rank),
        "confidence_head.proj.weight": (1, hidden + rank),
        "confidence_head.proj.bias": (1,),
    }
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config).items()}
    if config.has_own_embeddings:
        shapes |= dict.fromkeys(EMBEDDINGS, (vocab, hidden))
    return shapes


def _layer_shapes(config: DSparkConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qk_norm:
        shapes |= dict.fromkeys(
            ("self_attn.q_norm.weight", "self_attn.k_norm.weight"), (config.head_dim,)
        )
    return shapes
