"""A time limit over several calls."""

from __future__ import annotations

import time
from dataclasses import dataclass

from specsched_client._errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock; None never comes."""

    at_s: float | None

    @classmethod
    def after(cls, timeout_s: float | None) -> Deadline:
        """`timeout_s` seconds from now. Raises InvalidRequestError unless positive."""
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidRequestError(f"timeout_s = {timeout_s!r}; accepted: more than 0, or None")
        return cls(None if timeout_s is None else time.monotonic() + timeout_s)

    def remaining_s(self) -> float | None:
        """Seconds left, at least 0; None for no limit."""
        return None if self.at_s is None else max(self.at_s - time.monotonic(), 0.0)
