"""A request inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specsched_executor.batched_sink import BatchedSink
from specsched_executor.core import PAD_SLOT, DeltaSink, GenerationRequest, TokenLogprobs
from specsched_executor.engine.stopping import StopRules
from specsched_executor.sampling import LogitRules

__all__ = ["ActiveRequest"]


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """State of one output of a request, from submission to its last delta.

    index: which of the request's outputs. seed: resolved.
    max_total_tokens: prompt and output at most. logit_rules: None where there are none.
    slot_id, generation: while it holds a slot. batched_sink: the sink, if it may be passed by;
    taker: the number that `Delivery` gave to who takes in its place.

    tokens: int32, prompt and output, anchor last, and num_tokens, as many: while it holds no slot;
    replaced, never changed, since the outputs of a request begin with the same. While it holds one,
    `SlotColumns` has its progress, and these and the counts of drafts are as of when it noted them
    last.
    """

    request: GenerationRequest
    sink: DeltaSink
    seed: int
    max_total_tokens: int
    stop_rules: StopRules
    tokens: npt.NDArray[np.int32]
    index: int = 0
    logit_rules: LogitRules | None = None
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])
    slot_id: int = PAD_SLOT
    generation: int = 0
    num_verified_tokens: int = 0
    num_accepted_tokens: int = 0
    is_over: bool = False
    num_prompt_tokens: int = field(init=False)
    num_tokens: int = field(init=False)
    batched_sink: BatchedSink | None = field(init=False, default=None)
    taker: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.request.prompt_token_ids)
        self.num_tokens = len(self.tokens)
        sampling = self.request.sampling
        if sampling.logprobs is None and sampling.prompt_logprobs is None:
            self.batched_sink = self.sink if isinstance(self.sink, BatchedSink) else None

    @property
    def request_id(self) -> str:
        """The id it was submitted with."""
        return self.request.request_id

    @property
    def is_greedy(self) -> bool:
        """Whether it always takes the likeliest token."""
        return self.request.sampling.temperature == 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far, see `num_tokens`."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_missing_prompt_logprobs(self) -> int:
        """Prompt tokens whose log-probabilities were asked for and are still to be computed."""
        if self.request.sampling.prompt_logprobs is None:
            return 0
        return self.num_prompt_tokens - len(self.prompt_logprobs)
