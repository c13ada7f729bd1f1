"""Who asks what, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.bench.simulator.recordings import Recordings

__all__ = ["Requests", "Workload"]


@dataclass(frozen=True)
class Requests:
    """Drawn requests, [n] each. arrival_ms rises; recording: the recorded request it repeats."""

    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    recording: npt.NDArray[np.int64]
    arrival_ms: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Workload:
    """A load of at most `concurrency` requests at once.

    requests_per_second: None for a closed loop, in which the next request comes when one ends, into
    its place; else arrivals at random (Poisson), which wait where all places are taken. Prompts and
    answers are log-normal around their medians.
    """

    recordings: Recordings
    concurrency: int
    requests_per_second: float | None = None
    median_prompt_tokens: int = 256
    median_output_tokens: int = 192

    def draw(self, num_requests: int, seed: int) -> Requests:
        """The same requests for the same seed, whatever is decided about them."""
        rng = np.random.default_rng([seed, 0])
        prompt = self.median_prompt_tokens * np.exp(0.7 * rng.standard_normal(num_requests))
        output = self.median_output_tokens * np.exp(0.5 * rng.standard_normal(num_requests))
        arrival = np.zeros(num_requests)
        if self.requests_per_second is not None:
            arrival = np.cumsum(rng.exponential(1e3 / self.requests_per_second, num_requests))
        return Requests(
            prompt_tokens=np.clip(prompt, 8, 2048).astype(np.int64),
            output_tokens=np.clip(output, 16, 800).astype(np.int64),
            recording=rng.integers(len(self.recordings.row_at), size=num_requests),
            arrival_ms=arrival,
        )
