"""A GGUF file as a checkpoint: names and row order as Hugging Face has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import torch

from specsched_executor.core import ModelConfig
from specsched_executor.model._errors import ModelFormatError, UnsupportedModelError
from specsched_executor.model.gguf.container import GgufFile, TensorEntry
from specsched_executor.model.gguf.quantization import dequantize
from specsched_executor.model.spec import (
    DecoderSpec,
    DividedRopeScaling,
    LinearRopeScaling,
    RopeScaling,
)
from specsched_executor.tokenizer import Tokenizer, tokenizer_from_gguf

_ARCHITECTURES: Final = ("llama", "qwen3")
_TOP_NAMES: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "rope_freqs.weight": "rope_freqs.weight",
}
_LAYER_NAMES: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_PATTERN: Final = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


class GgufCheckpoint:
    """Implements Checkpoint; raises ModelFormatError or UnsupportedModelError.

    llama.cpp stores q and k of the architecture `llama` for interleaved rotary pairs (2i, 2i+1);
    `tensor` puts the rows back to rotate-half order (i, i + head_dim / 2).
    """

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        self.source = path
        self.spec = self._read_spec()

    def close(self) -> None:
        """Unmap the file."""
        self._file.close()

    def load_tokenizer(self) -> Tokenizer:
        """The byte-level BPE tokenizer in the metadata."""
        return tokenizer_from_gguf(self._file.metadata, self.source)

    def tensor(self, name: str, out: torch.Tensor) -> torch.Tensor:
        """Fill `out` with the tensor of this Hugging Face name."""
        if out.device.type != "cpu":
            return out.copy_(self.tensor(name, torch.empty(out.shape)))
        entry = self._entry(name)
        if entry.shape != tuple(out.shape):
            raise ModelFormatError(
                f"{self.source}: tensor {entry.name!r} has shape {entry.shape}, "
                f"expected {tuple(out.shape)}"
            )
        # A copy, since the file may be unmapped while torch still holds the memory.
        raw = torch.from_numpy(self._file.raw(entry).copy())
        interleaved = self._interleaved and (".q_proj." in name or ".k_proj." in name)
        if interleaved and out.dim() == 2:
            raw = _to_rotate_half(raw, self.spec.config.head_dim)
        dequantize(self._file.tensor_type(entry), raw, out)
        if interleaved and out.dim() == 1:
            out.copy_(_to_rotate_half(out[:, None], self.spec.config.head_dim)[:, 0])
        return out

    def unread(self) -> tuple[str, ...]:
        """Not told: beside the weights a file holds what is llama.cpp's alone."""
        return ()

    def _entry(self, name: str) -> TensorEntry:
        stored = _TOP_NAMES.get(name)
        if stored is None:
            match = _LAYER_PATTERN.fullmatch(name)
            if match is None:
                raise ModelFormatError(f"{self.source}: no GGUF name for tensor {name!r}")
            stored = f"blk.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
        entry = self._file.tensors.get(stored)
        if entry is None:
            raise ModelFormatError(f"{self.source}: tensor {stored!r} is missing")
        return entry

    def _read_spec(self) -> DecoderSpec:
        architecture = self._metadata("general.architecture")
        if architecture not in _ARCHITECTURES:
            raise UnsupportedModelError(
                f"{self.source}: GGUF architecture {architecture!r}; "
                f"served: {', '.join(_ARCHITECTURES)}"
            )
        self._interleaved = architecture == "llama"
        config = self._read_config(architecture)
        return DecoderSpec(
            config,
            qk_norm=architecture == "qwen3",
            attention_bias="blk.0.attn_q.bias" in self._file.tensors,
            rope_scaling=self._read_rope_scaling(architecture, config.head_dim),
        )

    def _read_rope_scaling(self, architecture: str, head_dim: int) -> RopeScaling | None:
        kind = self._file.metadata.get(f"{architecture}.rope.scaling.type", "none")
        if kind == "linear":
            return LinearRopeScaling(float(self._metadata(f"{architecture}.rope.scaling.factor")))
        if kind != "none":
            raise UnsupportedModelError(
                f"{self.source}: RoPE scaling {kind!r} in GGUF; read: none, linear, rope_freqs"
            )
        if "rope_freqs.weight" not in self._file.tensors:
            return None
        divisors = self.tensor("rope_freqs.weight", torch.empty(head_dim // 2))
        return DividedRopeScaling(tuple(divisors.tolist()))

    def _read_config(self, architecture: str) -> ModelConfig:
        def fact(key: str) -> Any:
            return self._metadata(f"{architecture}.{key}")

        meta = self._file.metadata
        num_heads = int(fact("attention.head_count"))
        hidden_size = int(fact("embedding_length"))
        head_dim = meta.get(f"{architecture}.attention.key_length", hidden_size // num_heads)
        embedding = self._entry("model.embed_tokens.weight")
        eos = [meta.get("tokenizer.ggml.eos_token_id"), meta.get("tokenizer.ggml.eot_token_id")]
        return ModelConfig(
            name=str(meta.get("general.name", self.source.stem)),
            num_layers=int(fact("block_count")),
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=int(meta.get(f"{architecture}.attention.head_count_kv", num_heads)),
            head_dim=int(head_dim),
            intermediate_size=int(fact("feed_forward_length")),
            vocab_size=embedding.shape[0],
            max_context_tokens=int(fact("context_length")),
            rope_theta=float(meta.get(f"{architecture}.rope.freq_base", 10_000.0)),
            rms_norm_eps=float(fact("attention.layer_norm_rms_epsilon")),
            tie_word_embeddings="output.weight" not in self._file.tensors,
            bos_token_id=meta.get("tokenizer.ggml.bos_token_id"),
            eos_token_ids=tuple(dict.fromkeys(int(token) for token in eos if token is not None)),
        )

    def _metadata(self, key: str) -> Any:
        try:
            return self._file.metadata[key]
        except KeyError:
            raise ModelFormatError(f"{self.source}: metadata {key!r} is missing") from None


def _to_rotate_half(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """[heads * head_dim, x], rows of a head ordered (pair, half) -> ordered (half, pair)."""
    paired = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
    return paired.transpose(1, 2).reshape(rows.shape)
