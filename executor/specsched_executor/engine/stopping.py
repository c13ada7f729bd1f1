"""When a request ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from specsched_executor.core import SamplingParams

__all__ = ["Detokenizer", "Stop", "StopRules", "StopStrings"]

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_MAX_INCOMPLETE_TOKENS: Final = 32
"""Tokens in a row after which a character is still unfinished: bytes that are no text at all."""


class Detokenizer(Protocol):
    """Token ids to text; special tokens are left out."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these tokens; bytes of an unfinished character become U+FFFD."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a request ended: finish_reason "stop" or "length", and the id or string that matched."""

    finish_reason: str
    matched: int | str | None = None


class StopStrings:
    """Looks for strings in the text of a growing output, across token borders.

    Decodes a short window per token: the tokens of the last complete piece of text and those since,
    so that a piece is spelled as it is in context.
    """

    def __init__(self, strings: Sequence[str], detokenizer: Detokenizer) -> None:
        self._strings = tuple(strings)
        self._detokenizer = detokenizer
        self._window: list[int] = []
        self._num_context_tokens = 0
        self._tail = ""
        self._max_tail = max(len(string) for string in strings) - 1

    def feed(self, token_id: int) -> str | None:
        """The string this token completes, the earliest in the text first; else None."""
        self._window.append(token_id)
        context = self._detokenizer.decode(self._window[: self._num_context_tokens])
        text = self._detokenizer.decode(self._window)
        num_new_tokens = len(self._window) - self._num_context_tokens
        if text.endswith(_INCOMPLETE) and num_new_tokens < _MAX_INCOMPLETE_TOKENS:
            return None
        self._window = self._window[self._num_context_tokens :]
        self._num_context_tokens = len(self._window)
        seen = self._tail + text[len(context) :]
        self._tail = seen[-self._max_tail :] if self._max_tail else ""
        found = [(seen.find(string), string) for string in self._strings if string in seen]
        return min(found)[1] if found else None


@dataclass(slots=True)
class StopRules:
    """The rules of one request, asked once per committed token.

    `ignored_below`: outputs before which only the length ends a request (min_tokens). token_ids:
    all that end the output.
    """

    stop_token_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    max_output_tokens: int
    ignored_below: int
    strings: StopStrings | None
    token_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.token_ids = self.stop_token_ids | self.eos_token_ids

    @classmethod
    def of(
        cls,
        params: SamplingParams,
        eos_token_ids: Sequence[int],
        max_output_tokens: int,
        detokenizer: Detokenizer | None,
    ) -> StopRules:
        """Rules for `params`; with stop strings a detokenizer must be given."""
        strings = None
        if params.stop and detokenizer is not None:
            strings = StopStrings(params.stop, detokenizer)
        return cls(
            stop_token_ids=frozenset(params.stop_token_ids),
            eos_token_ids=frozenset() if params.ignore_eos else frozenset(eos_token_ids),
            max_output_tokens=max_output_tokens,
            ignored_below=min(params.min_tokens, max_output_tokens),
            strings=strings,
        )

    def first_stop(
        self, token_ids: Sequence[int], num_output_tokens: int
    ) -> tuple[int, Stop | None]:
        """How many of the tokens that follow `num_output_tokens` are kept; why it ends, if so."""
        for index, token_id in enumerate(token_ids, start=1):
            stop = self.check(token_id, num_output_tokens + index)
            if stop is not None:
                return index, stop
        return len(token_ids), None

    def check(self, token_id: int, num_output_tokens: int) -> Stop | None:
        """Whether the output ends with `token_id`, its `num_output_tokens`-th token."""
        matched = self.strings.feed(token_id) if self.strings else None
        if num_output_tokens >= self.ignored_below:
            if token_id in self.stop_token_ids:
                return Stop("stop", token_id)
            if token_id in self.eos_token_ids:
                return Stop("stop")
            if matched is not None:
                return Stop("stop", matched)
        if num_output_tokens >= self.max_output_tokens:
            return Stop("length")
        return None
