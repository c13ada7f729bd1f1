"""A Hugging Face folder of a random Llama that loads and runs in no time.

One token per byte (the byte-level alphabet), then `<end>`, with which answers end.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 257
EOS_TOKEN_ID = 256
MAX_CONTEXT_TOKENS = 4096
_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM, _LAYERS, _FEED_FORWARD = 32, 4, 2, 8, 2, 64
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def write_tiny_checkpoint(folder: Path, *, seed: int = 0) -> Path:
    """Write config.json, model.safetensors and the tokenizer; returns `folder`."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "intermediate_size": _FEED_FORWARD,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": MAX_CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "eos_token_id": EOS_TOKEN_ID,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(seed), folder / "model.safetensors")
    _write_tokenizer(folder)
    return folder


def _weights(seed: int) -> dict[str, torch.Tensor]:
    shapes = {"model.embed_tokens.weight": (VOCAB_SIZE, _HIDDEN), "model.norm.weight": (_HIDDEN,)}
    for layer in range(_LAYERS):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (_HIDDEN,),
                "post_attention_layernorm": (_HIDDEN,),
                "self_attn.q_proj": (_HEADS * _HEAD_DIM, _HIDDEN),
                "self_attn.k_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
                "self_attn.v_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
                "self_attn.o_proj": (_HIDDEN, _HEADS * _HEAD_DIM),
                "mlp.gate_proj": (_FEED_FORWARD, _HIDDEN),
                "mlp.up_proj": (_FEED_FORWARD, _HIDDEN),
                "mlp.down_proj": (_HIDDEN, _FEED_FORWARD),
            }.items()
        }
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape)
        if name.endswith("norm.weight")
        else torch.randn(shape, generator=generator) * 0.3
        for name, shape in shapes.items()
    }


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<end>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
