"""How a request samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specsched_client._errors import InvalidRequestError

_INT32 = range(-(2**31), 2**31)
_UINT32_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters, checked on construction; InvalidRequestError names a bad one.

    temperature: 0 is greedy. top_k: 0 is off. top_p: in (0, 1]. seed: a 32-bit integer, equal seeds
    give equal output; None draws one. max_tokens: None goes on to the end of the context.
    min_tokens: output tokens before which nothing stops the output. stop: strings that end it, left
    out of the text unless `include_stop`. stop_token_ids: ids that end it. ignore_eos: go on past
    the ids with which the model ends its answers.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        finite = math.isfinite(self.temperature) and self.temperature >= 0
        self._require("temperature", finite, "a finite number >= 0")
        self._require("top_k", 0 <= self.top_k <= _UINT32_MAX, "0 (off) or more")
        self._require("top_p", 0 < self.top_p <= 1, "more than 0, at most 1")
        self._require("seed", self.seed is None or self.seed in _INT32, "-2^31 to 2^31 - 1")
        some = self.max_tokens is None or 1 <= self.max_tokens <= _UINT32_MAX
        self._require("max_tokens", some, "1 or more")
        self._require("min_tokens", 0 <= self.min_tokens <= _UINT32_MAX, "0 or more")
        self._require("stop", all(self.stop), "strings that are not empty")
        ids = all(0 <= token_id <= _UINT32_MAX for token_id in self.stop_token_ids)
        self._require("stop_token_ids", ids, "token ids >= 0")

    def _require(self, name: str, holds: bool, accepted: str) -> None:
        if not holds:
            raise InvalidRequestError(f"{name} = {getattr(self, name)!r}; accepted: {accepted}")
