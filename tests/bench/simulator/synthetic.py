"""Made-up drafts of a big model with a good drafter, which the recorded small ones cannot show.

Most tokens of such a text are sure, a minority are forks at which it could go on in many ways (over
half have an entropy below 0.01, a fifth one above 0.67: arXiv 2506.01939, Qwen3-8B). Requests
differ in their share of sure tokens, and it drifts along the text:

    P(token is sure) = sigmoid(DRIFT_START * logit(share of its request) + DRIFT * x), x of AR(1)
    acceptance       = sigmoid(logit(SURE or FORK) + TOKEN_SPREAD * noise - FADE * draft position)

Confidences see the same token, but now and then take a fork for sure or the reverse; they misjudge
a request as a whole, each draft anew, and are too sure of both outcomes, more so of acceptance. No
temperature and intercept, which is what the calibration learns, undoes that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from tests.bench.simulator.recordings import Recordings, load_recordings

__all__ = ["SPREADS", "load_drafts", "synthesize"]

Floats = npt.NDArray[np.float64]

SPREADS = {"synthetic alike": 0.06, "synthetic": 0.09, "synthetic unlike": 0.12}
"""Standard deviation between requests of the chance that a draft token is accepted. In the
recordings it is 0.06 at temperature 1 and 0.12 greedily, where loops add to it."""
MEAN_ACCEPTANCE = 0.75
SURE, FORK = 0.97, 0.3
"""Acceptance of such tokens."""
TOKEN_SPREAD, FADE = 0.8, 0.08
DRIFT, DRIFT_START, DRIFT_MEMORY = 0.8, 1.1, 0.95
MISTAKEN = 0.04
REQUEST_MISJUDGED, DRAFT_NOISE = 0.3, 0.5
OVERCONFIDENT, OVERDOUBTFUL = 1.2, 0.85
"""Logits above and below 0 are multiplied by these."""


@dataclass(frozen=True)
class _Texts:
    """Float64 [requests, tokens] each: logits of acceptance, and what the drafter sees of them."""

    logit: Floats
    seen: Floats


@cache
def load_drafts(kind: str) -> Recordings:
    """Recorded drafts, or synthetic ones of one of SPREADS."""
    if kind in SPREADS:
        return synthesize(SPREADS[kind])
    return load_recordings(kind)


def synthesize(
    spread: float, *, num_requests: int = 384, num_positions: int = 801, k: int = 7, seed: int = 0
) -> Recordings:
    """A draft of k tokens at every position of every request.

    spread: standard deviation between requests of the chance that a draft token is accepted, whose
    mean is MEAN_ACCEPTANCE; their distribution is a Beta.
    """
    rng = np.random.default_rng(seed)
    texts = _draw_texts(_draw_shares(spread, num_requests, rng), num_positions + k, rng)
    fade = FADE * np.arange(k)
    acceptance = _sigmoid(_windows(texts.logit, k, num_positions) - fade)
    is_accepted = rng.random(acceptance.shape) < acceptance
    seen = _windows(texts.seen, k, num_positions) - fade
    seen += REQUEST_MISJUDGED * rng.standard_normal((num_requests, 1, 1))
    seen += DRAFT_NOISE * rng.standard_normal(seen.shape)
    seen *= np.where(seen > 0.0, OVERCONFIDENT, OVERDOUBTFUL)
    num_drafts = num_requests * num_positions
    return Recordings(
        confidence=_sigmoid(seen).astype(np.float32).reshape(num_drafts, k),
        num_drafted=np.full(num_drafts, k),
        accepted=np.cumprod(is_accepted, axis=2).sum(axis=2).reshape(num_drafts),
        row_at=np.arange(num_drafts).reshape(num_requests, num_positions),
        domain=np.zeros(num_requests, dtype=np.int64),
        is_by_step=False,
    )


def _draw_shares(spread: float, num_requests: int, rng: np.random.Generator) -> Floats:
    """Float64 [requests]: of sure tokens."""
    weight = MEAN_ACCEPTANCE * (1.0 - MEAN_ACCEPTANCE) / spread**2 - 1.0
    level = rng.beta(MEAN_ACCEPTANCE * weight, (1.0 - MEAN_ACCEPTANCE) * weight, num_requests)
    shares: Floats = np.clip((level - FORK) / (SURE - FORK), 0.02, 0.98)
    return shares


def _draw_texts(shares: Floats, num_tokens: int, rng: np.random.Generator) -> _Texts:
    shape = (len(shares), num_tokens)
    mood = DRIFT_START * _logit(shares)[:, None] + DRIFT * _autoregressive(shape, rng)
    is_sure = rng.random(shape) < _sigmoid(mood)
    looks_sure = is_sure ^ (rng.random(shape) < MISTAKEN)
    own = TOKEN_SPREAD * rng.standard_normal(shape)
    logit, seen = (
        np.where(each, _logit(SURE), _logit(FORK)) + own for each in (is_sure, looks_sure)
    )
    return _Texts(logit, seen)


def _autoregressive(shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Of variance 1, along the second axis."""
    noise = rng.standard_normal(shape)
    noise[:, 1:] *= np.sqrt(1.0 - DRIFT_MEMORY**2)
    for token in range(1, shape[1]):
        noise[:, token] += DRIFT_MEMORY * noise[:, token - 1]
    return noise


def _windows(tokens: Floats, k: int, num_positions: int) -> Floats:
    """Float64 [requests, positions, k]: the tokens that a draft at each position is of."""
    return np.lib.stride_tricks.sliding_window_view(tokens, k, axis=1)[:, 1 : num_positions + 1]


def _logit(probability: float | Floats) -> Floats:
    return np.asarray(np.log(probability) - np.log1p(-np.asarray(probability)))


def _sigmoid(logit: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-logit)))
