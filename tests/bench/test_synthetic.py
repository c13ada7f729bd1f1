"""Synthetic drafts are what their module says: requests that differ, and confidences that err."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.simulator.recordings import Recordings
from tests.bench.simulator.synthetic import MEAN_ACCEPTANCE, SPREADS, load_drafts, synthesize

NUM_REQUESTS = 384


def acceptance_by_request(drafts: Recordings) -> np.ndarray:
    """Float64 [requests]: how often a draft token that is reached is accepted."""
    accepted = drafts.accepted.reshape(NUM_REQUESTS, -1)
    num_rejected = (accepted < drafts.max_draft_tokens).sum(axis=1)
    return accepted.sum(axis=1) / (accepted.sum(axis=1) + num_rejected)


@pytest.mark.parametrize("kind", SPREADS)
def test_requests_differ_by_as_much_as_asked(kind):
    acceptance = acceptance_by_request(load_drafts(kind))
    assert acceptance.mean() == pytest.approx(MEAN_ACCEPTANCE, abs=0.02)
    assert acceptance.std() == pytest.approx(SPREADS[kind], rel=0.15)


def test_confidences_tell_but_are_too_sure_of_both_outcomes():
    drafts = synthesize(0.09)
    confidence, is_accepted = drafts.confidence[:, 0], drafts.accepted > 0
    assert 0.8 < area_under_roc(confidence, is_accepted) < 0.9
    doubted, trusted = confidence < 0.2, confidence > 0.9
    assert is_accepted[doubted].mean() > confidence[doubted].mean() + 0.05
    assert is_accepted[trusted].mean() < confidence[trusted].mean() - 0.01


def area_under_roc(confidence: np.ndarray, is_accepted: np.ndarray) -> float:
    """Chance that an accepted draft was given more than a rejected one."""
    rank = np.argsort(np.argsort(confidence))[is_accepted]
    num_accepted, num_rejected = len(rank), len(confidence) - len(rank)
    return float((rank.sum() - num_accepted * (num_accepted - 1) / 2) / num_accepted / num_rejected)


def test_drafts_of_one_request_are_of_one_text():
    accepted = load_drafts("synthetic").accepted.reshape(NUM_REQUESTS, -1).astype(float)
    accepted -= accepted.mean(axis=1, keepdims=True)

    def correlation(distance: int) -> float:
        product = accepted[:, :-distance] * accepted[:, distance:]
        return float(product.mean() / accepted.var())

    assert correlation(1) > 0.3
    assert 0.02 < correlation(20) < 0.15, "beyond a draft's length only the drift is left"


def test_the_same_seed_gives_the_same_drafts():
    first, again, other = (synthesize(0.09, num_requests=4, seed=seed) for seed in (1, 1, 2))
    assert (first.accepted == again.accepted).all()
    assert (first.accepted != other.accepted).any()
