"""What the training text begins with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specsched_executor.tokenizer import Tokenizer, TokenizerError

__all__ = ["OpenTurn", "Prompt", "is_held_out", "open_turn", "read_prompts"]

_MARK = "\x02\x03"
"""Stands for the user's text while the template is taken apart; no template holds it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A first user turn. source: the stem of its file."""

    text: str
    source: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text, hex; names the prompt without repeating it."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """The chat template around a user turn.

    prefix: token ids up to where the user begins to write. suffix: those that end the turn and open
    the answer; the first of them is what the target itself ends the turn with.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]


def read_prompts(paths: Iterable[Path]) -> list[Prompt]:
    """Prompts of JSON-lines files, {"turns": [...]} or {"prompt": "..."} each.

    A folder stands for its *.jsonl files. Raises ValueError naming file and line.
    """
    prompts: list[Prompt] = []
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"{path} holds no *.jsonl file")
        for file in files:
            lines = file.read_text().split("\n")
            prompts += [
                Prompt(_text(line, f"{file}:{number}"), file.stem)
                for number, line in enumerate(lines, start=1)
                if line.strip()
            ]
    return prompts


def is_held_out(prompt: Prompt, share: float) -> bool:
    """Whether a prompt is kept from training: decided by its text alone, so always alike."""
    return int(prompt.digest[:8], 16) < share * 2**32


def open_turn(tokenizer: Tokenizer) -> OpenTurn:
    """Raises TokenizerError for a model whose template does not show where the user writes."""
    if tokenizer.chat_template is None:
        raise TokenizerError("the target has no chat template to let it write a user turn in")
    text = tokenizer.chat_template.render([{"role": "user", "content": _MARK}])
    before, mark, after = text.partition(_MARK)
    suffix = tokenizer.encode(after, add_special_tokens=False)
    if not mark or not suffix:
        raise TokenizerError("the chat template does not put the user's text into the prompt as is")
    return OpenTurn(tuple(tokenizer.encode(before, add_special_tokens=False)), tuple(suffix))


def encode_prompts(tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids of each as the first turn of a conversation."""
    return [tokenizer.encode_chat([{"role": "user", "content": p.text}]) for p in prompts]


def _text(line: str, place: str) -> str:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place} is no JSON: {error}") from error
    turns = fields.get("turns") if isinstance(fields, dict) else None
    text = turns[0] if turns else fields.get("prompt") if isinstance(fields, dict) else None
    if not isinstance(text, str) or not text:
        raise ValueError(
            f'{place} has no text; accepted: {{"turns": ["..."]}}, {{"prompt": "..."}}'
        )
    return text
