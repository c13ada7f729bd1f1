"""How a request samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from specsched_client._errors import InvalidRequestError

_INT32 = range(-(2**31), 2**31)
_UINT32_MAX = 2**32 - 1
_MAX_BIAS = 100
_MAX_LOGPROBS = 20
_MAX_OUTPUTS = 128
_MAX_PENALTY = 2
_REPETITION_RANGE = (0.01, 100)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters, checked on construction; InvalidRequestError names a bad one.

    temperature: 0 is greedy. top_k: 0 is off. top_p: in (0, 1]. min_p: leaves out tokens less
    likely than this times the likeliest; in [0, 1]. repetition_penalty: in [0.01, 100], 1 is off;
    of tokens in prompt or output. presence_penalty, frequency_penalty: in [-2, 2]; subtracted for
    tokens in the output, once or per occurrence. logit_bias: token id -> addend in [-100, 100].
    n: outputs of the prompt, up to 128. logprobs, prompt_logprobs: up to 20 likeliest tokens to
    tell at each position of output or prompt, beside the token there; None tells nothing. seed: a
    32-bit integer, equal seeds give equal output, whatever is drafted and verified; None draws one,
    and drafts that were drawn are then accepted more often. max_tokens: None goes on to the
    end of the context. min_tokens: output tokens before which nothing stops the output. stop:
    strings that end it, left out of the text unless `include_stop`. stop_token_ids: ids that end
    it. ignore_eos: go on past the ids with which the model ends its answers.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
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
        self._require("top_k", 0 <= self.top_k <= _UINT32_MAX, f"0 (off) to {_UINT32_MAX}")
        self._require("top_p", 0 < self.top_p <= 1, "more than 0, at most 1")
        self._require_penalties()
        self._require("n", 1 <= self.n <= _MAX_OUTPUTS, f"1 to {_MAX_OUTPUTS}")
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            few = count is None or 0 <= count <= _MAX_LOGPROBS
            self._require(name, few, f"0 to {_MAX_LOGPROBS}, or None")
        self._require("seed", self.seed is None or self.seed in _INT32, "-2^31 to 2^31 - 1")
        some = self.max_tokens is None or 1 <= self.max_tokens <= _UINT32_MAX
        self._require("max_tokens", some, f"1 to {_UINT32_MAX}, or None")
        self._require("min_tokens", 0 <= self.min_tokens <= _UINT32_MAX, f"0 to {_UINT32_MAX}")
        self._require("stop", all(self.stop), "strings that are not empty")
        ids = all(0 <= token_id <= _UINT32_MAX for token_id in self.stop_token_ids)
        self._require("stop_token_ids", ids, f"token ids from 0 to {_UINT32_MAX}")

    def _require_penalties(self) -> None:
        self._require("min_p", 0 <= self.min_p <= 1, "0 (off) to 1")
        lowest, highest = _REPETITION_RANGE
        repetition = lowest <= self.repetition_penalty <= highest
        self._require("repetition_penalty", repetition, f"{lowest} to {highest} (1: off)")
        for name in ("presence_penalty", "frequency_penalty"):
            bounded = -_MAX_PENALTY <= getattr(self, name) <= _MAX_PENALTY
            self._require(name, bounded, f"-{_MAX_PENALTY} to {_MAX_PENALTY} (0: off)")
        biases = all(
            0 <= token_id < _INT32.stop and -_MAX_BIAS <= bias <= _MAX_BIAS
            for token_id, bias in self.logit_bias.items()
        )
        self._require("logit_bias", biases, f"token ids >= 0 with -{_MAX_BIAS} to {_MAX_BIAS}")

    def _require(self, name: str, holds: bool, accepted: str) -> None:
        if not holds:
            raise InvalidRequestError(f"{name} = {getattr(self, name)!r}; accepted: {accepted}")
