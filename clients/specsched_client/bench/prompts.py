"""Prompt files: what the requests of a measurement ask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from specsched_client._errors import InvalidRequestError, NoChatTemplateError
from specsched_client._types import Message, TextCodec

__all__ = ["BenchPrompt", "digest", "encode_prompts", "read_prompts"]

_ACCEPTED = 'accepted: one JSON object a line, {"turns": [TEXT, ...]} or {"prompt": TEXT}'


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """Text of a prompt. is_chat: it goes through the model's chat template. place: its line."""

    text: str
    is_chat: bool
    place: str = field(default="prompt", compare=False)


def read_prompts(path: Path) -> list[BenchPrompt]:
    """The prompts of a file in its order; of a conversation the first turn.

    Blank lines are skipped. Raises InvalidRequestError naming file and line of anything else.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidRequestError(f"prompts {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"prompts {path}: {error}") from error
    prompts = [
        _read_line(line, f"prompts {path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise InvalidRequestError(f"prompts {path}: it holds none; {_ACCEPTED}")
    return prompts


def digest(prompts: Sequence[BenchPrompt]) -> str:
    """SHA-256 of the prompts in their order: equal where the same is asked."""
    asked = json.dumps([[prompt.text, prompt.is_chat] for prompt in prompts])
    return hashlib.sha256(asked.encode()).hexdigest()


def encode_prompts(prompts: list[BenchPrompt], codec: TextCodec) -> list[list[int]]:
    """Token ids, so that no text has to be encoded or decoded while time is measured.

    Raises InvalidRequestError naming the line of a prompt that cannot be encoded.
    """
    return [_encoded(prompt, codec) for prompt in prompts]


def _encoded(prompt: BenchPrompt, codec: TextCodec) -> list[int]:
    try:
        if prompt.is_chat:
            return codec.encode_chat([_user_turn(prompt.text)])
        return codec.encode(prompt.text)
    except NoChatTemplateError as error:
        raise InvalidRequestError(f'{prompt.place}: {error}: {{"prompt": TEXT}}') from error
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{prompt.place}: {error}") from error


def _read_line(line: str, place: str) -> BenchPrompt:
    try:
        entry: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"{place}: {error}; {_ACCEPTED}") from error
    if isinstance(entry, dict):
        turns, text = entry.get("turns"), entry.get("prompt")
        if isinstance(turns, list) and turns and _is_text(turns[0]):
            return BenchPrompt(turns[0], is_chat=True, place=place)
        if turns is None and _is_text(text):
            return BenchPrompt(text, is_chat=False, place=place)
    raise InvalidRequestError(f"{place}: {line[:80]!r}; {_ACCEPTED}")


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value)


def _user_turn(text: str) -> Message:
    return {"role": "user", "content": text}
