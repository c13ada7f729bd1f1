"""How drafts follow one another, on recorded ones and on ones that are made up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from specsched_scheduler.decision.anticipation import anticipate
from specsched_scheduler.decision.calibration import GREEDY
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.pairing import DraftedSteps
from specsched_scheduler.learning.succession import Succession

K = 7
IDENTITY = Calibration.identity(K)
FIXTURE = Path(__file__).parents[2] / "fixtures" / "drafts.npz"


def drafted(
    confidence: npt.NDArray[np.float64],
    *,
    generation: Iterable[int] | None = None,
    step_id: Iterable[int] | None = None,
) -> DraftedSteps:
    """A draft a step, [n, k], of the request in slot 3."""
    num_steps = len(confidence)
    steps = np.arange(num_steps) if step_id is None else np.array(list(step_id))
    generations = np.ones(num_steps) if generation is None else np.array(list(generation))
    return DraftedSteps(
        source_step_id=steps.astype(np.int64),
        row_begin=np.arange(num_steps + 1),
        slot_id=np.full(num_steps, 3, dtype=np.uint32),
        generation=generations.astype(np.uint32),
        is_greedy=np.ones(num_steps, dtype=np.bool_),
        confidence=confidence.astype(np.float32),
    )


def learned(*parts: DraftedSteps, calibration: Calibration = IDENTITY) -> Succession:
    succession = Succession(K)
    for part in parts:
        succession.observe(part, calibration)
    succession.update()
    return succession


def recorded(temperature: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """(confidences [n, k], requests [n]) of requests one after the other, all kinds mixed."""
    with np.load(FIXTURE) as arrays:
        chosen = arrays["temperature"] == temperature
        logit, request = arrays["conf_logit"][chosen], arrays["request"][chosen].astype(np.int64)
    turn = np.random.default_rng(0).permutation(request.max() + 1)
    order = np.argsort(turn[request], kind="stable")
    return 1.0 / (1.0 + np.exp(-logit[order].astype(np.float64))), request[order]


def independent(seed: int, num_steps: int) -> npt.NDArray[np.float64]:
    """Each draft goes well or badly as a whole, whatever the one before did."""
    rng = np.random.default_rng(seed)
    goes_well = rng.random((num_steps, 1)) < 0.5
    return np.where(goes_well, 0.9, 0.3) * rng.uniform(0.9, 1.1, (num_steps, K))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_recorded_drafts_are_told_better_than_by_those_before(temperature: float) -> None:
    confidence, request = recorded(temperature)
    half = len(request) // 2
    succession = learned(drafted(confidence[:half], generation=request[:half]))
    survival, told = np.cumprod(confidence[half:], axis=1), succession.anticipation
    is_pair = request[half + 1 :] == request[half:-1]
    before, after = survival[:-1][is_pair], survival[1:][is_pair]
    expected = anticipate(before, 1, *told)
    assert np.square(expected - after).mean() < 0.95 * np.square(before - after).mean()
    assert np.square(expected - after).mean() < 0.95 * np.square(told.survival - after).mean()


def test_drafts_that_do_not_depend_on_those_before_are_pulled_all_the_way() -> None:
    confidence = independent(1, 4000)
    told = learned(drafted(confidence)).anticipation
    assert told.pull == pytest.approx(np.ones(K), abs=0.08)
    assert told.survival == pytest.approx(np.cumprod(confidence, axis=1).mean(axis=0), abs=0.02)


def test_where_old_confidences_say_all_nothing_is_pulled() -> None:
    levels = np.random.default_rng(2).uniform(0.1, 0.9, 100)
    of_step = np.repeat(levels, 40)
    confidence = np.repeat(of_step[:, None], K, axis=1)
    told = learned(drafted(confidence, generation=np.repeat(np.arange(1, 101), 40))).anticipation
    assert told.pull.max() < 0.02


def test_little_evidence_pulls_little() -> None:
    few = learned(drafted(independent(3, 9))).anticipation
    assert few.pull.max() <= 8 / (8 + 64)
    assert Succession(K).anticipation.pull.tolist() == [0.0] * K


def test_drafts_make_pairs_across_lessons_but_not_across_gaps_and_requests() -> None:
    confidence = independent(4, 300)
    whole = learned(drafted(confidence)).state()
    parts = [drafted(confidence[i : i + 7], step_id=range(i, i + 7)) for i in range(0, 294, 7)]
    parts.append(drafted(confidence[294:], step_id=range(294, 300)))
    assert np.stack(learned(*parts).state()) == pytest.approx(np.stack(whole))
    assert whole.evidence.tolist() == [299.0] * K
    with_gaps = learned(drafted(confidence, step_id=range(0, 600, 2))).state()
    others = learned(drafted(confidence, generation=range(300))).state()
    assert not with_gaps.evidence.any()
    assert not others.evidence.any()


def test_pairs_reach_as_far_as_both_drafts() -> None:
    confidence = independent(5, 200)
    confidence[::2, 4:] = np.nan
    confidence[::2, 2] = 1.5  # no probability
    state = learned(drafted(confidence)).state()
    assert state.evidence.tolist() == [199.0] * 2 + [0.0] * 5
    assert np.isfinite(np.stack(state)).all()


def test_survivals_are_those_that_decisions_go_by() -> None:
    confidence = independent(6, 500)
    boastful = IDENTITY.with_class(GREEDY, np.full(K, 1.5), np.full(K, -1.0))
    logit = np.log(confidence / (1 - confidence))
    mended = 1 / (1 + np.exp(-(logit / 1.5 - 1.0)))
    calibrated = learned(drafted(confidence), calibration=boastful).anticipation
    expected = learned(drafted(mended)).anticipation
    assert calibrated.survival == pytest.approx(expected.survival, abs=0.01)


def test_what_is_restored_goes_on_alike() -> None:
    old, heir = learned(drafted(independent(7, 400))), Succession(K)
    heir.restore(old.state())
    np.testing.assert_array_equal(heir.anticipation, old.anticipation)
    for each in (old, heir):
        each.observe(drafted(independent(8, 400), step_id=range(1000, 1400)), IDENTITY)
        assert each.update()
    np.testing.assert_array_equal(heir.anticipation, old.anticipation)
    assert not heir.update()  # nothing came since


def test_a_change_is_followed() -> None:
    succession = learned(drafted(independent(9, 5000)))
    bad = 0.2 * np.random.default_rng(10).uniform(0.9, 1.1, (12_000, K))
    succession.observe(drafted(bad, step_id=range(9000, 21_000)), IDENTITY)
    assert succession.update()
    assert succession.anticipation.survival[0] == pytest.approx(0.2, abs=0.06)
