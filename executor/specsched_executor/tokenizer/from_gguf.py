"""A byte-level BPE tokenizer out of GGUF metadata (`tokenizer.ggml.*`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from specsched_executor.tokenizer._errors import TokenizerError
from specsched_executor.tokenizer.chat_template import ChatTemplate
from specsched_executor.tokenizer.tokenizer import Tokenizer

_CONTROL, _USER_DEFINED = 3, 4
_ROLES: Final = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_gpt2() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2()])


def _split(number: str) -> pre_tokenizers.PreTokenizer:
    pattern = Regex(f"{_CONTRACTIONS}|{number}|{_REST}")
    split = pre_tokenizers.Split(pattern, behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, byte_level])


_PRE_TOKENIZERS: Final[dict[str, Callable[[], pre_tokenizers.PreTokenizer]]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _digits_then_gpt2,
    "llama-bpe": lambda: _split(r"\p{N}{1,3}"),
    "qwen2": lambda: _split(r"\p{N}"),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: Path) -> Tokenizer:
    """Build the tokenizer; TokenizerError names an unknown tokenizer and those that are read."""
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise TokenizerError(f"{source}: GGUF tokenizer {model!r}; read: 'gpt2' (byte-level BPE)")
    tokens, backend = _build_backend(metadata, source)
    special = {
        role: tokens[metadata[key]] for role, key in _ROLES.items() if metadata.get(key) is not None
    }
    if metadata.get("tokenizer.ggml.add_bos_token") and "bos_token" in special:
        backend.post_processor = _prepend_bos(special["bos_token"], tokens)
    ends = (
        metadata.get(key) for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    )
    template = metadata.get("tokenizer.chat_template")
    architecture = metadata.get("general.architecture")
    return Tokenizer(
        backend=backend,
        special_tokens=special,
        eos_token_ids=tuple(dict.fromkeys(token for token in ends if token is not None)),
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        chat_template=None if template is None else ChatTemplate(template, special),
        model_max_tokens=metadata.get(f"{architecture}.context_length"),
    )


def _build_backend(
    metadata: Mapping[str, Any], source: Path
) -> tuple[list[str], tokenizers.Tokenizer]:
    missing = [
        key for key in ("tokens", "merges", "token_type") if f"tokenizer.ggml.{key}" not in metadata
    ]
    if missing:
        raise TokenizerError(f"{source}: metadata tokenizer.ggml.{missing[0]} is missing")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        accepted = ", ".join(_PRE_TOKENIZERS)
        raise TokenizerError(f"{source}: GGUF pre-tokenizer {pre!r}; read: {accepted}")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=pre == "llama-bpe")
    )
    backend.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, token_kind in zip(tokens, kinds, strict=True)
            if token_kind == kind
        ]
        backend.add_tokens(added)
    return tokens, backend


def _prepend_bos(bos: str, tokens: list[str]) -> processors.PostProcessor:
    return processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokens.index(bos))]
    )
