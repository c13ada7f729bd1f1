"""Correcting a cost model from steps replayed over recorded surfaces."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from specsched_scheduler.decision.calibration import GREEDY
from specsched_scheduler.decision.cost import ContextCost, CostModel
from specsched_scheduler.learning.cost.corrector import CostCorrector
from specsched_scheduler.learning.cost.robust import fit_terms, robust_ratio
from specsched_scheduler.learning.cost.samples import CostSample, SampleWindow

from tests.scheduler_service.learning.cost_replay import (
    FAULTS,
    Fault,
    Replay,
    cpu_surface,
    h200_surface,
)
from tests.scheduler_service.learning.traces import drafts

NUM_STEPS, BEGIN = 1500, 500
MAX_LOSS, MAX_LOSS_WITHOUT_FAULT = 0.01, 0.002
DECODERS = ["8b", "smollm2-135m"]
TOO_DEAR = (96, 112, 128, 160, 192, 224, 256)


def confidences():
    return 1.0 / (1.0 + np.exp(-drafts(GREEDY).observations.logit))


def replay(decoder, fault, seed=0):
    surface = h200_surface(decoder)
    return Replay(surface, fault, confidences(), max_requests=256, seed=seed)


def losses(decoder, fault, seed=0):
    """(loss without learning, loss with, probes)."""
    raw, _ = replay(decoder, fault, seed).run(None, NUM_STEPS, BEGIN)
    learned = replay(decoder, fault, seed)
    loss, num_probes = learned.run(CostCorrector(learned.profile), NUM_STEPS, BEGIN)
    return raw, loss, num_probes


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("decoder", DECODERS)
def test_loss_after_500_steps(decoder, fault):
    raw, loss, num_probes = losses(decoder, fault)
    is_sound = fault.name in ("nothing", "spike", "cold", "dearer")
    assert loss < (MAX_LOSS_WITHOUT_FAULT if is_sound else MAX_LOSS)
    assert loss < max(raw, MAX_LOSS_WITHOUT_FAULT)
    assert num_probes <= NUM_STEPS / 128


@pytest.mark.parametrize("decoder", DECODERS)
def test_without_learning_the_context_costs_dearly(decoder):
    (fault,) = [each for each in FAULTS if each.name == "context"]
    raw, _ = replay(decoder, fault).run(None, NUM_STEPS, BEGIN)
    assert raw > 0.05


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_on_a_machine_that_does_much_else_it_is_no_worse(fault):
    """Samples of one size differ by a factor of eight there, and the profile is off itself."""
    rates = []
    for learns in (False, True):
        run = Replay(cpu_surface(), fault, confidences(), max_requests=16, seed=1)
        rates.append(run.run(CostCorrector(run.profile) if learns else None, NUM_STEPS, BEGIN)[0])
    assert rates[1] <= rates[0] + MAX_LOSS_WITHOUT_FAULT


def test_stairs_that_came_to_cost_more_are_found():
    """Not the learner's form: only from one size on, as where another kernel takes over."""
    first_dear = h200_surface("8b").verify_ms[192]
    fault = Fault("stair", verify=lambda ms, first: 1.5 * ms if ms >= first_dear else ms)
    raw, loss, _ = losses("8b", fault)
    assert raw > MAX_LOSS
    assert loss < MAX_LOSS


def test_drift_is_followed():
    """Twice the slope, reached little by little over 1,000 steps, with noise all along."""
    surface = h200_surface("8b")
    first = min(surface.verify_ms.values())
    growing = {"step": 0}

    def sample(ms, step):
        growing["step"] = step
        return ms

    def verify(ms, base):
        return base + (1.0 + min(growing["step"] / 1000, 1.0)) * (ms - base)

    fault = Fault("drift", verify=verify, sample=sample)
    run = Replay(surface, fault, confidences(), max_requests=256, seed=4)
    corrector = CostCorrector(run.profile)
    run.run(corrector, NUM_STEPS, NUM_STEPS - 1)
    model, true_at = corrector.model().compile(), 2.0 * surface.verify_ms[256] - first
    assert model.verify_ms[256] == pytest.approx(true_at, rel=0.04)


def test_a_size_profiled_too_dear_is_tried_again():
    """Never chosen at a steady load, it would never be measured: only a probe can find out."""
    found = {}
    for probes in (True, False):
        surface = h200_surface("8b")
        run = Replay(surface, FAULTS[0], confidences(), max_requests=256, seed=2, volatility=0.0)
        run.load = 48
        verify = dict(run.profile.verify)
        for size in TOO_DEAR:
            verify[size] = tuple(1.6 * ms for ms in verify[size])
        run.profile = dataclasses.replace(run.profile, verify=verify)
        corrector = CostCorrector(run.profile)
        if not probes:
            corrector.probe_rows = lambda: 0
        found[probes], _ = run.run(corrector, 7000, 5500)
    assert found[False] > 2 * MAX_LOSS
    assert found[True] < MAX_LOSS


# ===================== The parts =====================


PROFILE = CostModel(
    verify={1: (1.0,), 8: (1.2,), 16: (1.6,), 32: (2.4,), 64: (4.0,)},
    capture_limit=64,
    draft={1: (0.5,), 32: (1.0,)},
    context=ContextCost(1e-4),
)


def sample(step, rows, ms, **changes):
    values = {"num_sampling": 4, "context_tokens": 100, **changes}
    return CostSample(num_tokens=rows, verify_ms=ms, **values)


def test_nothing_seen_is_the_profile():
    corrector = CostCorrector(PROFILE)
    assert not corrector.update()
    assert corrector.model() == PROFILE


def test_a_correction_that_predicts_no_better_is_not_used():
    """Samples that scatter by a factor of ten teach nothing that could be relied on."""
    corrector = CostCorrector(PROFILE)
    rng = np.random.default_rng(7)
    for step in range(600):
        rows = [8, 16, 32][step % 3]
        ms = {8: 1.2, 16: 1.6, 32: 2.4}[rows] * float(np.exp(rng.normal(0.0, 1.0)))
        corrector.observe([sample(step, rows, ms, context_tokens=0)])
        if step % 16 == 15:
            corrector.update()
    assert not corrector.is_worth_it
    assert corrector.model() == PROFILE


def test_cold_and_impossible_samples_are_left_out():
    corrector = CostCorrector(PROFILE)
    for step in range(32):
        corrector.observe([sample(step, 8, 100.0)])
    for step, ms in enumerate([0.0, -1.0, float("nan"), float("inf")] * 10):
        corrector.observe([sample(step, 8, ms)])
    assert not corrector.update()


def test_one_outlier_leaves_no_trace():
    models = []
    for spike in (1.0, 10.0):
        corrector = CostCorrector(PROFILE)
        rng = np.random.default_rng(0)
        for step in range(200):
            ms = 1.21 * (1 + 0.02 * rng.standard_normal()) * (spike if step == 150 else 1.0)
            corrector.observe([sample(step, 8, 2.0 * ms)])
            if step % 16 == 15:
                corrector.update()
        assert corrector.is_worth_it
        models.append(corrector.model().compile().verify_ms)
    np.testing.assert_allclose(models[1], models[0], rtol=0.01)


def test_without_three_sizes_nothing_is_learned():
    profile = CostModel(verify={1: (1.0,), 8: (1.2,)}, capture_limit=8)
    corrector = CostCorrector(profile)
    for step in range(100):
        corrector.observe([sample(step, 8, 5.0)])
    assert not corrector.update()
    assert corrector.probe_rows() == 0


def test_of_few_sizes_those_that_are_not_used_are_tried():
    corrector = CostCorrector(PROFILE)
    asked = []
    for step in range(1000):
        corrector.observe([sample(step, 8, 1.2)])
        asked.append(corrector.probe_rows())
        if step % 16 == 15:
            corrector.update()
    assert {*asked} == {0, 1, 16, 32, 64}
    assert sum(rows > 0 for rows in asked) <= 1000 / 128


def test_drafts_are_corrected_by_length():
    profile = dataclasses.replace(PROFILE, short_drafts={2: {1: (0.2,), 32: (0.4,)}})
    corrector = CostCorrector(profile)
    for step in range(200):
        corrector.observe([sample(step, 8, 1.21, draft_ms=0.75, draft_tokens=7, num_sampling=1)])
    corrector.update()
    model = corrector.model()
    assert model.draft[1][0] == pytest.approx(0.75, rel=0.05)
    assert model.draft[32][0] == pytest.approx(1.5, rel=0.05)
    # Never drafted: takes over from the length that was.
    assert model.short_drafts[2][1][0] == pytest.approx(0.3, rel=0.05)


def test_a_machine_that_became_slower_drafts_more_slowly_too():
    """Drafts are seen at first, then none while all steps come to take twice as long; and what they
    are found to take then is not taken for twice as much again."""
    corrector = CostCorrector(PROFILE)

    def run(steps, times, **drafted):
        for step in steps:
            rows = [8, 16, 32][step % 3]
            ms = times * {8: 1.2, 16: 1.6, 32: 2.4}[rows]
            corrector.observe([sample(step, rows, ms, context_tokens=0, **drafted)])
            if step % 16 == 15:
                corrector.update()

    run(range(200), 1.3, draft_ms=1.3 * 0.75, draft_tokens=7, num_sampling=1)
    assert corrector.model().draft[1][0] == pytest.approx(1.3 * 0.75, rel=0.05)
    run(range(200, 600), 2.6)
    assert corrector.model().draft[1][0] == pytest.approx(2.6 * 0.75, rel=0.05)
    run(range(600, 800), 2.6, draft_ms=2.6 * 0.75, draft_tokens=7, num_sampling=1)
    assert corrector.model().draft[1][0] == pytest.approx(2.6 * 0.75, rel=0.05)


def test_what_was_learned_can_be_handed_over():
    first = CostCorrector(PROFILE)
    for step in range(300):
        rows = [8, 16, 32][step % 3]
        ms = {8: 2.0, 16: 2.5, 32: 3.0}[rows]
        first.observe([sample(step, rows, ms, draft_ms=0.9, draft_tokens=7)])
        if step % 16 == 15:
            first.update()
    first.update()
    second = CostCorrector(PROFILE)
    second.restore(first.correction())
    expected = first.model().compile()
    got = second.model().compile()
    np.testing.assert_allclose(got.verify_ms, expected.verify_ms)
    np.testing.assert_allclose(got.draft_ms, expected.draft_ms)


def test_terms_are_found_through_a_third_of_bad_samples():
    rng = np.random.default_rng(1)
    base, context = rng.uniform(1, 10, 300), rng.uniform(0, 1e4, 300)
    measured = 0.5 + 2.0 * base + 1e-3 * context
    measured[::3] *= 8.0
    terms = np.stack([np.ones(300), base, context], axis=1)
    prior, is_signed = np.array([0.0, 1.0, 0.0]), np.array([True, False, False])
    got = fit_terms(terms, measured, prior, is_signed)
    np.testing.assert_allclose(got, [0.5, 2.0, 1e-3], rtol=0.05)
    # Where it starts decides how long it takes, not where it ends.
    start = np.array([3.0, 0.5, 1e-2])
    again = fit_terms(terms, measured, prior, is_signed, start)
    np.testing.assert_allclose(again, got, rtol=1e-3)


def test_terms_that_samples_leave_open_stay_at_the_prior():
    base, context = np.full(200, 4.0), np.full(200, 100.0)
    terms = np.stack([np.ones(200), base, context], axis=1)
    prior = np.array([0.0, 1.0, 0.01])
    got = fit_terms(terms, np.full(200, 5.0), prior, np.array([True, False, False]))
    np.testing.assert_allclose(got, prior, atol=1e-6)


def test_unsigned_terms_are_not_negative():
    base = np.linspace(1, 10, 100)
    terms = np.stack([np.ones(100), base, base**2], axis=1)
    got = fit_terms(terms, 20.0 - base, np.array([0.0, 1.0, 0.0]), np.array([True, False, False]))
    assert got[1] >= 0.0
    assert got[2] >= 0.0


def test_ratio_is_pulled_to_one_by_few_samples():
    one = robust_ratio(np.full(1, 2.0), np.ones(1), prior_weight=4.0)
    many = robust_ratio(np.full(400, 2.0), np.ones(400), prior_weight=4.0)
    assert 1.0 < one < 1.2 < 1.9 < many < 2.0
    assert robust_ratio(np.zeros(0), np.zeros(0), prior_weight=4.0) == 1.0


def test_window_keeps_the_newest():
    window = SampleWindow(3, 1)
    for value in range(5):
        window.add(float(value))
    assert sorted(window.rows()[:, 0].tolist()) == [2.0, 3.0, 4.0]
