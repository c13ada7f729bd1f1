"""How requests arrive."""

from __future__ import annotations

import random
from dataclasses import dataclass

from specsched_client._errors import InvalidRequestError

__all__ = ["ClosedLoop", "Load", "OpenLoop", "arrival_times_s"]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` users, each of whom sends a request as soon as the last one was answered."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InvalidRequestError(f"concurrency = {self.concurrency}; accepted: 1 or more")

    def __str__(self) -> str:
        return f"concurrency {self.concurrency}"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests come at random at `rate_per_s`, whether or not earlier ones were answered."""

    rate_per_s: float

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s < float("inf"):
            raise InvalidRequestError(f"rate = {self.rate_per_s}; accepted: requests/s above 0")

    def __str__(self) -> str:
        return f"{self.rate_per_s:g} requests/s"


Load = ClosedLoop | OpenLoop


def arrival_times_s(load: OpenLoop, num_requests: int, seed: int) -> list[float]:
    """Seconds from the start of the round of a Poisson process; equal for equal seeds.

    The first request comes at 0: a round has no silence at its start.
    """
    generator = random.Random(seed)  # noqa: S311 - arrivals, not secrets
    times, now_s = [], 0.0
    for _ in range(num_requests):
        times.append(now_s)
        now_s += generator.expovariate(load.rate_per_s)
    return times
