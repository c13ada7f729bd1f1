"""Small random checkpoints of DeepSeek-V3.2, under the names Hugging Face gives."""

from __future__ import annotations

from typing import Any

import torch
import transformers

VOCAB_SIZE = 160
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "rope_parameters": YARN,
}


def random_deepseek(seed: int = 3, **overrides: Any) -> Any:
    """A transformers model with random weights, norms and corrections included."""
    torch.manual_seed(seed)
    config = transformers.DeepseekV32Config(**{**SIZES, **overrides})
    model = transformers.DeepseekV32ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gate.weight"):
                parameter.normal_(0, 0.3)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
            if name.endswith("k_norm.bias"):
                parameter.normal_(0, 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.uniform_(-0.5, 0.5)
    return model
