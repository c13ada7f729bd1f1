"""A tokenizer from a Hugging Face folder: tokenizer.json, tokenizer_config.json, chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import tokenizers

from specsched_executor.tokenizer._errors import TokenizerError
from specsched_executor.tokenizer.chat_template import ChatTemplate
from specsched_executor.tokenizer.tokenizer import Tokenizer

_ROLES: Final = ("bos_token", "eos_token", "unk_token", "pad_token")


def tokenizer_from_huggingface(folder: Path, eos_token_ids: tuple[int, ...]) -> Tokenizer:
    """Read the tokenizer of a folder.

    eos_token_ids: those of the model's configuration; the tokenizer's own `eos_token` is added.
    Raises TokenizerError when tokenizer.json is missing or unreadable.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"{path} is missing; a folder with a fast tokenizer (tokenizer.json) is needed"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises nothing more precise
        raise TokenizerError(
            f"{path} is no tokenizer of the `tokenizers` library: {error}"
        ) from error
    config = _read_json(folder / "tokenizer_config.json")
    special = {role: _token_text(config[role]) for role in _ROLES if config.get(role)}
    eos = _token_id(backend, special.get("eos_token"))
    return Tokenizer(
        backend=backend,
        special_tokens=special,
        eos_token_ids=tuple(dict.fromkeys((*eos_token_ids, *(() if eos is None else (eos,))))),
        bos_token_id=_token_id(backend, special.get("bos_token")),
        chat_template=_read_template(folder, config, special),
        model_max_tokens=_max_tokens(config),
    )


def _read_template(
    folder: Path, config: dict[str, Any], special: dict[str, str]
) -> ChatTemplate | None:
    """chat_template.jinja wins over the entry in tokenizer_config.json, as in transformers."""
    file = folder / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return None if template is None else ChatTemplate(template, special)


def _max_tokens(config: dict[str, Any]) -> int | None:
    """model_max_length, unless it is the huge number that stands for "unknown"."""
    length = config.get("model_max_length")
    return int(length) if length is not None and length < 1 << 31 else None


def _token_text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _token_id(backend: tokenizers.Tokenizer, token: str | None) -> int | None:
    return None if token is None else backend.token_to_id(token)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise TokenizerError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} holds a {type(content).__name__}, expected an object")
    return content
