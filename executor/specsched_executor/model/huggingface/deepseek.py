"""config.json of DeepSeek-V3.2: sparse latent attention and a mixture of experts."""

from __future__ import annotations

from dataclasses import replace

from specsched_kernels.indexer_logits import INDEX_DIM, KEY_BLOCK_SIZE

from specsched_executor.core import ModelConfig
from specsched_executor.model._errors import ModelFormatError
from specsched_executor.model.huggingface.facts import ConfigFacts
from specsched_executor.model.huggingface.rope import RopeFacts
from specsched_executor.model.spec import DecoderSpec, MixtureSpec, SparseMlaSpec

__all__ = ["deepseek_spec"]


def deepseek_spec(facts: ConfigFacts, config: ModelConfig, rope: RopeFacts) -> DecoderSpec:
    """The decoder of a configuration whose common values are `config` and `rope`.

    Raises UnsupportedModelError and ModelFormatError as `read_spec` does.
    """
    facts.refuse_other("scoring_func", ("sigmoid",), default="sigmoid")
    facts.refuse_other("topk_method", ("noaux_tc",), default="noaux_tc")
    facts.refuse_other("moe_layer_freq", (1,), default=1)
    facts.refuse_other("attention_bias", (False,), default=False)
    num_dense = min(_count(facts, "first_k_dense_replace"), config.num_layers)
    kinds = ["dense"] * num_dense + ["sparse"] * (config.num_layers - num_dense)
    facts.refuse_other("mlp_layer_types", (None, kinds))
    nope, rotary = facts.integer("qk_nope_head_dim"), facts.integer("qk_rope_head_dim")
    attention = SparseMlaSpec(
        q_lora_rank=facts.integer("q_lora_rank"),
        kv_lora_rank=facts.integer("kv_lora_rank"),
        nope_head_dim=nope,
        rope_head_dim=rotary,
        value_head_dim=facts.integer("v_head_dim"),
        index_heads=facts.integer("index_n_heads"),
        index_head_dim=facts.integer("index_head_dim"),
        index_topk=facts.integer("index_topk"),
        softmax_scale=(nope + rotary) ** -0.5 * rope.softmax_factor,
    )
    _check_attention(facts, attention)
    return DecoderSpec(
        config=replace(
            config,
            num_kv_heads=1,
            head_dim=attention.entry_dim,
            kv_block_size=KEY_BLOCK_SIZE,
        ),
        rope_scaling=rope.scaling,
        sparse_mla=attention,
        mixture=_mixture(facts),
    )


def _check_attention(facts: ConfigFacts, attention: SparseMlaSpec) -> None:
    if attention.rope_head_dim % 2 or attention.rope_head_dim > attention.index_head_dim:
        raise ModelFormatError(
            f"{facts.path}: qk_rope_head_dim is {attention.rope_head_dim}, expected an even number"
            f" up to index_head_dim, {attention.index_head_dim}"
        )
    facts.refuse_other("index_head_dim", (INDEX_DIM,))


def _mixture(facts: ConfigFacts) -> MixtureSpec:
    expert_size = facts.integer("moe_intermediate_size")
    mixture = MixtureSpec(
        first_layer=_count(facts, "first_k_dense_replace"),
        num_experts=facts.integer("n_routed_experts"),
        experts_per_token=facts.integer("num_experts_per_tok"),
        num_groups=facts.integer("n_group", 1),
        groups_per_token=facts.integer("topk_group", 1),
        normalizes=bool(facts.content.get("norm_topk_prob", True)),
        scaling_factor=float(facts.number("routed_scaling_factor", 1.0)),
        expert_size=expert_size,
        shared_size=_count(facts, "n_shared_experts") * expert_size,
    )
    per_group, remainder = divmod(mixture.num_experts, mixture.num_groups)
    usable = per_group * mixture.groups_per_token
    if remainder or per_group < 2 or mixture.groups_per_token > mixture.num_groups:
        raise ModelFormatError(
            f"{facts.path}: n_routed_experts is {mixture.num_experts}, n_group"
            f" {mixture.num_groups}, topk_group {mixture.groups_per_token}; expected groups of two"
            " or more experts each"
        )
    if mixture.experts_per_token > usable:
        raise ModelFormatError(
            f"{facts.path}: num_experts_per_tok is {mixture.experts_per_token}, expected at most"
            f" the {usable} experts of {mixture.groups_per_token} groups"
        )
    return mixture


def _count(facts: ConfigFacts, key: str) -> int:
    """A whole number that may be 0, which it is where it is missing."""
    return facts.integer(key) if facts.content.get(key) else 0
