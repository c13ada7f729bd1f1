"""What goes into a generation and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Message = Mapping[str, str]
"""One turn of a conversation: `role` and `content`."""

Prompt = str | Sequence[int] | Sequence[Message]
"""Plain text, token ids, or a conversation for the model's chat template."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithms of the model's own probabilities at one position.

    Before any bias, penalty, temperature or cut. logprob: of the token that is there. top: the
    likeliest tokens as (token id, log-probability), best first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished output.

    text: None for a prompt given as token ids. finish_reason: "stop", "length" or "abort".
    matched_stop: the stop string or stop token id that ended it. num_draft_tokens,
    num_accepted_tokens: drafts verified, and those of them that became output. index: which of the
    prompt's n outputs. logprobs: one for each of token_ids, prompt_logprobs: one for each token of
    the prompt, None for its first; empty unless asked for.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str | None
    finish_reason: str
    matched_stop: int | str | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of a stream; an output's last one carries the whole of it as `completion`.

    text: "" while a character is incomplete or may belong to a stop string, None for a prompt given
    as token ids. index: which of the prompt's n outputs it belongs to.
    """

    token_ids: tuple[int, ...]
    text: str | None
    completion: Completion | None = None
    index: int = 0


class TextDecoder(Protocol):
    """Turns the output of one request into text, piece by piece."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that became complete."""

    def flush(self) -> str:
        """Text that was still held back."""


class TextCodec(Protocol):
    """A model's tokenizer and chat template."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, with the start of the answer."""

    def decoder(self) -> TextDecoder:
        """A decoder for one output."""
