"""Recorded drafts of a real drafter: what it was confident of and what was accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Recordings", "load_recordings"]

FIXTURES = Path(__file__).parents[2] / "fixtures"
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Recordings:
    """Drafts of recorded requests.

    confidence: float32 [n, k], NaN where the drafter had nothing to offer. num_drafted: int64 [n],
    0 there, else k. accepted: int64 [n], of a full draft. row_at: int64 [requests, m], by how many
    steps a request had before if is_by_step, else by its output position; a shorter answer begins
    again. domain: int64 [requests].

    Steps of a drafter that is served are recorded, one where the last ended, none between. Replayed
    by position, a step that verified less than they did would end where there is none and take the
    next one, again and again where that brings little: short drafts would look worse than they are.
    """

    confidence: npt.NDArray[np.float32]
    num_drafted: Ints
    accepted: Ints
    row_at: Ints
    domain: Ints
    is_by_step: bool

    @property
    def max_draft_tokens(self) -> int:
        """k."""
        return int(self.confidence.shape[1])

    def thinned(self, share: float, seed: int, *, knows: bool = True) -> Recordings:
        """A worse drafter: each accepted token stays accepted with this probability.

        knows: whether its confidences fall as well.
        """
        lost_at = np.random.default_rng(seed).geometric(1.0 - share, len(self.accepted)) - 1
        confidence = self.confidence * np.float32(share) if knows else self.confidence
        accepted = np.minimum(self.accepted, lost_at)
        return replace(self, confidence=confidence, accepted=accepted)

    def boasting(self, tries: float) -> Recordings:
        """A drafter that is as good, but as sure of each token as if it had several tries."""
        doubt = 1.0 - self.confidence.astype(np.float64)
        return replace(self, confidence=(1.0 - doubt**tries).astype(np.float32))


@cache
def load_recordings(kind: str, num_steps: int = 1024) -> Recordings:
    """Answers of the fixtures.

    Of a block drafter `sampled` (temperature 1), `greedy`, or `mixed`, as many of each. Of prompt
    lookup, where half of the prompts ask for a text that they hold, `greedy copy` or `copy`, both
    temperatures.
    """
    if kind in ("copy", "greedy copy"):
        with np.load(FIXTURES / "lookup_drafts.npz") as arrays:
            chosen = (arrays["temperature"] == 0.0) | (kind == "copy")
            return _by_step(arrays, chosen, num_steps)
    with np.load(FIXTURES / "drafts.npz") as arrays:
        is_sampled = arrays["temperature"] == 1.0
        greedy, sampled = (np.unique(arrays["request"][each]) for each in (~is_sampled, is_sampled))
        some = np.random.default_rng(0).choice(greedy, len(sampled), replace=False)
        is_some = ~is_sampled & np.isin(arrays["request"], some)
        chosen = {"sampled": is_sampled, "greedy": ~is_sampled, "mixed": is_sampled | is_some}[kind]
        return _by_step(arrays, chosen, num_steps)


def _by_step(
    arrays: Mapping[str, npt.NDArray[Any]], chosen: npt.NDArray[np.bool_], num_steps: int
) -> Recordings:
    logit, accepted = arrays["conf_logit"][chosen], arrays["accepted"][chosen].astype(np.int64)
    request, domain = arrays["request"][chosen], arrays["domain"][chosen]
    starts = np.flatnonzero(np.append(True, request[1:] != request[:-1]))
    num_recorded = np.diff(np.append(starts, len(request)))
    rows = starts[:, None] + np.arange(num_steps) % num_recorded[:, None]
    confidence = (1.0 / (1.0 + np.exp(-logit.astype(np.float64)))).astype(np.float32)
    num_drafted = np.isfinite(confidence).sum(axis=1)
    of_request = domain[starts].astype(np.int64)
    return Recordings(confidence, num_drafted, accepted, rows, of_request, is_by_step=True)
