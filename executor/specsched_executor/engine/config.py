"""Options of one engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from specsched_executor.engine.fallback import FallbackPolicy

__all__ = ["EngineConfig"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes of an engine, checked on construction.

    max_num_seqs: requests that hold a slot at once. max_num_batched_tokens: rows of one step,
    drafts included. max_draft_tokens: k. block_size: tokens of a KV block. max_context_tokens:
    prompt and output of a request together; None: what the model allows. has_recorded_outcomes:
    whether drafts are accepted as in a recording, whatever seed a request has. Raises ValueError.
    """

    num_kv_blocks: int
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_draft_tokens: int = 7
    block_size: int = 16
    max_context_tokens: int | None = None
    fallback: FallbackPolicy = field(default_factory=FallbackPolicy)
    has_recorded_outcomes: bool = False

    def __post_init__(self) -> None:
        self._check_at_least("num_kv_blocks", self.num_kv_blocks, 1)
        self._check_at_least("max_num_seqs", self.max_num_seqs, 1)
        # Every decoding request has its anchor in every step.
        self._check_at_least(
            "max_num_batched_tokens", self.max_num_batched_tokens, self.max_num_seqs
        )
        self._check_at_least("max_draft_tokens", self.max_draft_tokens, 0)
        self._check_at_least("block_size", self.block_size, 1)
        if self.max_context_tokens is not None:
            self._check_at_least("max_context_tokens", self.max_context_tokens, 2)

    def context_tokens(self, model_context_tokens: int) -> int:
        """Most tokens of a request, prompt and output."""
        return min(self.max_context_tokens or model_context_tokens, model_context_tokens)

    def blocks_per_request(self, model_context_tokens: int) -> int:
        """Most KV blocks of a request; drafts may stand one step beyond the context."""
        context = self.max_context_tokens or model_context_tokens
        return -(-(context + self.max_draft_tokens + 1) // self.block_size)

    @staticmethod
    def _check_at_least(name: str, value: int, minimum: int) -> None:
        if value < minimum:
            raise ValueError(f"{name} is {value}; accepted: {minimum} or more")
