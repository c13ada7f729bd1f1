"""Averages of what drafts brought and cost by position, and how sure they are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.draft_length.outcome import Floats, Outcome

__all__ = ["Averages"]

MEMORY_STEPS, MEMORY_REQUEST_STEPS = 64, 2048
"""What the averages remember of positions that are drafted: whichever is more."""
PROBE_MEMORY_STEPS, PROBE_MEMORY_REQUEST_STEPS = 16, 64
"""The same of positions seen in probes only."""


class Averages:
    """float64 [k] each: gain and extra by position, see the package; request-steps they rest on
    (evidence, at most what is remembered) and that were ever seen. speed: float64 [k + 1], of each
    length."""

    def __init__(self, gain: Floats, extra: Floats, evidence: Floats, seen: Floats) -> None:
        self.gain, self.extra, self.evidence, self.seen = gain, extra, evidence, seen
        self.speed = self._speed()

    @property
    def max_draft_tokens(self) -> int:
        """k."""
        return len(self.gain)

    @classmethod
    def empty(cls, max_draft_tokens: int) -> Averages:
        """Nothing was seen."""
        return cls(*np.zeros((4, max_draft_tokens)))

    def learn(self, outcome: Outcome, draft_tokens: int) -> None:
        """Take a step in. draft_tokens: length of drafts now; longer ones are probes."""
        num_sampling, known = outcome.num_sampling, np.arange(outcome.num_known)
        memory = np.where(
            known < draft_tokens,
            max(MEMORY_STEPS * num_sampling, MEMORY_REQUEST_STEPS),
            max(PROBE_MEMORY_STEPS * num_sampling, PROBE_MEMORY_REQUEST_STEPS),
        )
        evidence = np.minimum(self.evidence[known] + num_sampling, memory)
        share = num_sampling / evidence
        self.evidence[known] = evidence
        self.gain[known] += share * (outcome.gain[known] - self.gain[known])
        self.extra[known] += share * (outcome.extra[known] - self.extra[known])
        self.seen[known] += num_sampling
        self.speed = self._speed()

    def are_seen(self, least: float) -> npt.NDArray[np.bool_]:
        """bool [k + 1]: whether all positions of a length were seen in so many request-steps."""
        seen: npt.NDArray[np.bool_] = np.append(True, self.seen >= least)
        return np.logical_and.accumulate(seen)

    def standard_error(self, length: int) -> Floats:
        """float64 [k + 1]: of speed(L) - speed(length), taking accepted drafts to vary as geometric
        ones do, whose variance is g (1 + g)."""
        between = np.abs(_sums(self.gain) - _sums(self.gain)[length])
        least = np.minimum.accumulate(np.append(np.inf, self.evidence))
        evidence = np.maximum(np.minimum(least, least[length]), 1.0)
        mean = np.maximum(between, 1.0 / evidence)
        error: Floats = np.sqrt(mean * (1.0 + mean) / evidence) / (1.0 + _sums(self.extra))
        return error

    def _speed(self) -> Floats:
        speed: Floats = (1.0 + _sums(self.gain)) / (1.0 + _sums(self.extra))
        return speed


def _sums(values: Floats) -> Floats:
    sums: Floats = np.concatenate([[0.0], np.cumsum(values)])
    return sums
