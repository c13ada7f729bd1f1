"""Small random checkpoints, made by transformers or written as GGUF from its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers

from tests.executor.model.gguf_writer import F32, encode, write_gguf

VOCAB_SIZE = 160
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}

_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tokenizer_file(folder: Path) -> None:
    vocabulary = {f"t{i}": i for i in range(VOCAB_SIZE)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(folder / "tokenizer.json"))


def random_model(kind: str = "llama", **overrides: Any) -> Any:
    """A transformers model with random weights, norms included."""
    torch.manual_seed(3)
    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }
    config_class, model_class = classes[kind]
    model = model_class(config_class(**{**SIZES, **overrides})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            if name.endswith("bias"):
                parameter.normal_(0, 0.2)
    return model


def save_folder(model: Any, folder: Path, *, max_shard_size: str = "5GB") -> Path:
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer_file(folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(content))


def expected_logits(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    """float32 [n, vocab] by transformers' own forward pass."""
    with torch.no_grad():
        return model(token_ids[None]).logits[0].float()


def gguf_metadata(model: Any) -> dict[str, Any]:
    config = model.config
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet[: VOCAB_SIZE - 2], "<end>", "ab"]
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": config.num_hidden_layers,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.key_length": config.head_dim,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.context_length": config.max_position_embeddings,
        "llama.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (VOCAB_SIZE - 2) + [3, 1],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": VOCAB_SIZE - 2,
    }


def to_interleaved(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows (half, pair) of each head to (pair, half), as llama.cpp's converter permutes them."""
    heads = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return heads.swapaxes(1, 2).reshape(weight.shape)


def gguf_tensors(model: Any, kind: int) -> dict[str, tuple[tuple[int, ...], int, bytes]]:
    """The model's weights as GGUF tensors; its own weights become what the file holds."""
    tensors = {}
    for name, parameter in model.named_parameters():
        stored_name = _gguf_name(name)
        weight = parameter.detach().numpy()
        rotated = "q_proj" in name or "k_proj" in name
        weight = to_interleaved(weight, model.config.head_dim) if rotated else weight
        tensor_kind = kind if weight.ndim == 2 else F32
        encoded, values = encode(weight, tensor_kind)
        tensors[stored_name] = (weight.shape, tensor_kind, encoded)
        if rotated:
            pairs = values.reshape(-1, model.config.head_dim // 2, 2, *weight.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(weight.shape)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))
    return tensors


def save_gguf(model: Any, path: Path, kind: int = F32, **metadata: Any) -> Path:
    write_gguf(path, {**gguf_metadata(model), **metadata}, gguf_tensors(model, kind))
    return path


def _gguf_name(name: str) -> str:
    if "embed_tokens" in name:
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    if name == "lm_head.weight":
        return "output.weight"
    _, _, layer, *middle, suffix = name.split(".")
    return f"blk.{layer}.{_GGUF_NAMES['.'.join(middle)]}.{suffix}"
