"""What one request experienced."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RequestRecord"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Times are seconds on one monotonic clock.

    start_s: when it was due; in an open loop that is its arrival, however late it was sent.
    first_token_s: None where no token came. num_first_tokens: tokens that came with the first.
    num_verified_tokens, num_accepted_tokens: drafts, as the server tells at the end. error: why it
    failed, None for a whole answer.
    """

    index: int
    start_s: float
    end_s: float
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    first_token_s: float | None = None
    num_first_tokens: int = 0
    num_verified_tokens: int = 0
    num_accepted_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None

    @property
    def time_to_first_token_s(self) -> float | None:
        """Seconds the user looked at nothing."""
        return None if self.first_token_s is None else self.first_token_s - self.start_s

    @property
    def time_per_output_token_s(self) -> float | None:
        """Mean seconds between tokens after the first; None for an answer too short to have it."""
        num_later = self.num_output_tokens - self.num_first_tokens
        if self.first_token_s is None or num_later < 1:
            return None
        return (self.end_s - self.first_token_s) / num_later
