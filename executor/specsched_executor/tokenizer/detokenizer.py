"""Streaming detokenisation that never emits half a character."""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTEXT_TOKENS = 6
"""Tokens kept before the next one so that decoders that look back (spaces) see them."""


class IncrementalDetokenizer:
    """Turns output tokens into text piece by piece; the pieces concatenate to the whole text.

    Text is held back while the newest tokens end inside a UTF-8 sequence, so a token that is one
    byte of a four-byte character yields "" until its last byte came. Bytes that can never become a
    character are released as U+FFFD once a later token shows it, or by `flush`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        prompt_token_ids: Iterable[int] = (),
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        self._backend = backend
        self._skip_special_tokens = skip_special_tokens
        self._tokens = list(prompt_token_ids)[-_CONTEXT_TOKENS:]
        self._emitted = len(self._tokens)
        self._start = 0

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that became complete with these tokens."""
        self._tokens.extend(token_ids)
        prefix = self._decode(self._start, self._emitted)
        text = self._decode(self._start, len(self._tokens))
        if len(text) <= len(prefix) or text.endswith(_REPLACEMENT):
            return ""
        return self._advance(prefix, text)

    def flush(self) -> str:
        """What is still held back, at the end of the stream."""
        prefix = self._decode(self._start, self._emitted)
        text = self._decode(self._start, len(self._tokens))
        return self._advance(prefix, text)

    def _advance(self, prefix: str, text: str) -> str:
        self._start = self._emitted
        self._emitted = len(self._tokens)
        return text[len(prefix) :]

    def _decode(self, start: int, end: int) -> str:
        return self._backend.decode(
            self._tokens[start:end], skip_special_tokens=self._skip_special_tokens
        )
