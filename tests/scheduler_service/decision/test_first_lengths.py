"""The draft length of a batch size that was not seen before."""

from __future__ import annotations

import numpy as np
import pytest
from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.decision.draft_length import NUM_QUANTILES, DraftLength, Survivals
from specsched_scheduler.decision.draft_length.averages import renew_speed
from specsched_scheduler.decision.draft_length.choosing import best_length
from specsched_scheduler.decision.draft_length.loads import new_load_states

K = 7
SIZES = (1, 4, 16, 64, 128)
VERIFY = {n: (44.0 + 1.0 * n,) for n in SIZES}
# As on two cores: of 16 requests a draft takes as long as the step without.
DEAR = CostModel(
    verify=VERIFY,
    capture_limit=0,
    draft={1: (19.0,), 4: (24.0,), 16: (60.0,)},
    short_drafts={1: {1: (9.0,), 4: (13.0,), 16: (30.0,)}},
).compile()
FREE = CostModel(verify=VERIFY, capture_limit=0).compile()


def learner(confidence, table, num_drafts=256):
    """Of an executor whose drafts were all about so confident, at whatever batch size."""
    survivals = Survivals(K)
    spread = np.random.default_rng(0).uniform(-0.04, 0.04, (num_drafts, K))
    survivals.see(confidence + spread)
    draft_length = DraftLength(K, survivals)
    draft_length.begin(table)
    return draft_length


@pytest.mark.parametrize("num_requests", [1, 4, 16, 256])
def test_a_free_drafter_is_tried_in_full(num_requests):
    nothing_seen = DraftLength(K)
    nothing_seen.begin(FREE)
    assert nothing_seen.plan_for(num_requests).draft_tokens == K


def test_drafts_that_cannot_pay_are_not_begun_with():
    """Nothing was seen at 16 requests, but how sure drafts are, and that there they are dear."""
    lengths = learner(0.45, DEAR)
    assert lengths.plan_for(16).draft_tokens == 0
    assert lengths.plan_for(1).draft_tokens > 0


def test_drafts_that_pay_are_begun_with():
    assert learner(0.95, DEAR).plan_for(16).draft_tokens == K


def test_without_a_model_drafts_are_full():
    empty = CostModel(verify={1: (1.0,)}, capture_limit=1).compile()
    assert learner(0.1, empty).plan_for(16).draft_tokens == K


def test_probes_take_a_hundredth_of_the_time_where_their_period_has_room():
    """Two steps of a probe that adds two thirds to each: once in 128 steps, not in 32."""
    assert learner(0.45, DEAR).plan_for(16).probe_period == 128


def test_first_beliefs_give_way_to_what_is_seen():
    survivals = Survivals(K)
    believed = survivals.quantiles().mean(axis=0)
    assert believed == pytest.approx(0.6 ** np.arange(1, K + 1), abs=0.02)
    survivals.see(np.full((128, K), 0.9, dtype=np.float32))
    assert survivals.quantiles() == pytest.approx(
        np.tile(0.9 ** np.arange(1, K + 1), (NUM_QUANTILES, 1)), rel=1e-6
    )


def test_what_is_behind_a_short_draft_is_taken_to_be_as_before():
    survivals = Survivals(K)
    survivals.see(np.full((128, K), 0.9, dtype=np.float32))
    short = np.full((128, K), np.nan, dtype=np.float32)
    short[:, :2] = 0.5
    survivals.see(short)
    expected = 0.25 * 0.9 ** np.array([-1, 0, 1, 2, 3, 4, 5])
    expected[0] = 0.5
    assert survivals.quantiles().mean(axis=0) == pytest.approx(expected, rel=1e-6)


def test_drafts_without_a_confidence_say_nothing():
    survivals = Survivals(K)
    before = survivals.quantiles()
    survivals.see(np.full((200, K), np.nan, dtype=np.float32))
    survivals.see(np.zeros((0, K), dtype=np.float32))
    assert np.array_equal(survivals.quantiles(), before)
    assert not survivals.is_known


def test_what_another_saw_is_taken_over():
    ours, theirs = Survivals(K), Survivals(K)
    theirs.see(np.random.default_rng(1).random((300, K)))
    ours.restore(theirs.quantiles())
    assert np.array_equal(ours.quantiles(), theirs.quantiles())
    assert ours.is_known


@pytest.mark.parametrize(("log2_requests", "num_steps"), [(0, 64), (2, 64), (4, 16), (7, 16)])
def test_a_choice_that_loses_a_little_is_left_sooner_where_there_are_more_requests(
    log2_requests, num_steps
):
    """Drafts of two tokens bring 3 % less than they take: too little to be clear at once."""
    loads = new_load_states(K)
    loads.draft_tokens[log2_requests] = 2
    loads.gain[log2_requests, :2] = 0.5, 0.2
    loads.extra[log2_requests, :2] = 0.55, 0.2
    loads.evidence[log2_requests] = loads.seen[log2_requests] = 1000
    renew_speed(loads, log2_requests)
    loads.changed_at[log2_requests] = 100
    assert best_length(loads, log2_requests, 100 + num_steps - 1, is_expected=True) == 2
    assert best_length(loads, log2_requests, 100 + num_steps, is_expected=True) == 0
