"""A request inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from specsched_executor.core import PAD_SLOT, DeltaSink, GenerationRequest, TokenLogprobs
from specsched_executor.engine.stopping import StopRules
from specsched_executor.sampling import LogitRules

__all__ = ["ActiveRequest"]


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """State of one output of a request, from submission to its last delta.

    index: which of the request's outputs. arrival: order of submission. seed: resolved.
    max_total_tokens: prompt and output at most. logit_rules: None where there are none.
    tokens: prompt and output, anchor last. num_cached_tokens: leading tokens whose keys and values
    are in the cache. num_draft_tokens: drafts present, made at the end of the last step.
    num_block_cuts: how often block_ids lost blocks, rather than grew. Where steps overlap, besides:
    max_in_flight_tokens: the most that launched steps may still commit; tokens known are all
    cached then. is_anchor_on_device: a launched step sampled, so only the device has the anchor.
    """

    request: GenerationRequest
    sink: DeltaSink
    arrival: int
    seed: int
    max_total_tokens: int
    stop_rules: StopRules
    tokens: list[int]
    index: int = 0
    logit_rules: LogitRules | None = None
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])
    slot_id: int = PAD_SLOT
    generation: int = 0
    block_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_draft_tokens: int = 0
    was_offered_draft: bool = False
    num_verified_tokens: int = 0
    num_accepted_tokens: int = 0
    is_over: bool = False
    num_block_cuts: int = 0
    max_in_flight_tokens: int = 0
    is_anchor_on_device: bool = False

    @property
    def request_id(self) -> str:
        """The id it was submitted with."""
        return self.request.request_id

    @property
    def is_greedy(self) -> bool:
        """Whether it always takes the likeliest token."""
        return self.request.sampling.temperature == 0

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_missing_prompt_logprobs(self) -> int:
        """Prompt tokens whose log-probabilities were asked for and are still to be computed."""
        if self.request.sampling.prompt_logprobs is None:
            return 0
        return self.num_prompt_tokens - len(self.prompt_logprobs)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens not in the cache yet: 1, the anchor, while decoding; more inside a prefill."""
        return len(self.tokens) - self.num_cached_tokens + (self.max_in_flight_tokens > 0)

    @property
    def max_num_tokens(self) -> int:
        """Tokens known, and those that launched steps may still commit."""
        return len(self.tokens) + self.max_in_flight_tokens

    @property
    def surely_ends(self) -> bool:
        """Whether a launched step commits its last token, whatever that is."""
        is_last = len(self.tokens) + 1 >= self.max_total_tokens
        return is_last and self.max_in_flight_tokens > 0

    @property
    def max_useful_drafts(self) -> int:
        """Drafts of which each could still be output: one place is the bonus token's."""
        return max(0, self.max_total_tokens - self.max_num_tokens - 1)
