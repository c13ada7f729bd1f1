"""A request inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from specsched_executor.core import PAD_SLOT, DeltaSink, GenerationRequest
from specsched_executor.engine.stopping import StopRules

__all__ = ["ActiveRequest"]


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """State of one request from submission to its last delta.

    arrival: order of submission. seed: resolved. max_total_tokens: prompt and output at most.
    tokens: prompt and output, anchor last. num_cached_tokens: leading tokens whose keys and values
    are in the cache. num_draft_tokens: drafts present, made at the end of the last step.
    """

    request: GenerationRequest
    sink: DeltaSink
    arrival: int
    seed: int
    max_total_tokens: int
    stop_rules: StopRules
    tokens: list[int]
    slot_id: int = PAD_SLOT
    generation: int = 0
    block_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_draft_tokens: int = 0
    was_offered_draft: bool = False
    num_verified_tokens: int = 0
    num_accepted_tokens: int = 0
    is_over: bool = False

    @property
    def request_id(self) -> str:
        """The id it was submitted with."""
        return self.request.request_id

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Tokens not in the cache yet: 1, the anchor, while decoding; more inside a prefill."""
        return len(self.tokens) - self.num_cached_tokens

    @property
    def max_useful_drafts(self) -> int:
        """Drafts of which each could still be output: one place is the bonus token's."""
        return max(0, self.max_total_tokens - len(self.tokens) - 1)
