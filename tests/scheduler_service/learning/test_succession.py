"""How far drafts tell of those that follow, on recorded ones and on ones that are made up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from specsched_scheduler.decision.anticipation import anticipate_rows, new_own_drafts
from specsched_scheduler.decision.calibration import GREEDY
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.pairing import DraftedSteps
from specsched_scheduler.learning.succession import Succession

K = 7
SLOT = 3
IDENTITY = Calibration.identity(K)
FIXTURE = Path(__file__).parents[2] / "fixtures" / "drafts.npz"

Floats = npt.NDArray[np.float64]


def drafted(
    confidence: Floats,
    *,
    generation: Iterable[int] | None = None,
    step_id: Iterable[int] | None = None,
) -> DraftedSteps:
    """A draft a step, [n, k], of the request in one slot."""
    num_steps = len(confidence)
    steps = np.arange(num_steps) if step_id is None else np.array(list(step_id))
    generations = np.ones(num_steps) if generation is None else np.array(list(generation))
    return DraftedSteps(
        source_step_id=steps.astype(np.int64),
        row_begin=np.arange(num_steps + 1),
        slot_id=np.full(num_steps, SLOT, dtype=np.uint32),
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


def recorded(temperature: float) -> tuple[Floats, npt.NDArray[np.int64]]:
    """(confidences [n, k], requests [n]) of requests one after the other, all kinds mixed."""
    with np.load(FIXTURE) as arrays:
        chosen = arrays["temperature"] == temperature
        logit, request = arrays["conf_logit"][chosen], arrays["request"][chosen].astype(np.int64)
    turn = np.random.default_rng(0).permutation(request.max() + 1)
    order = np.argsort(turn[request], kind="stable")
    return 1.0 / (1.0 + np.exp(-logit[order].astype(np.float64))), request[order]


def expected_of_next(confidence: Floats, request: npt.NDArray[np.int64], pull: Floats) -> Floats:
    """Survivals expected of the draft after each, alone in its step."""
    own, out = new_own_drafts(SLOT + 1, K), np.empty((1, K), dtype=np.float32)
    slot, num_valid = np.array([SLOT]), np.array([K])
    rows = [
        anticipate_rows(own, pull, slot, of[None], num_valid, 1, 1, row[None], out).copy()
        for row, of in zip(confidence.astype(np.float32), request, strict=True)
    ]
    return np.cumprod(np.concatenate(rows).astype(np.float64), axis=1)


def independent(seed: int, num_steps: int) -> Floats:
    """Each draft goes well or badly as a whole, whatever the one before did."""
    rng = np.random.default_rng(seed)
    goes_well = rng.random((num_steps, 1)) < 0.5
    return np.where(goes_well, 0.9, 0.3) * rng.uniform(0.9, 1.1, (num_steps, K))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_recorded_drafts_are_told_better_than_by_those_before(temperature: float) -> None:
    confidence, request = recorded(temperature)
    half = len(request) // 2
    succession = learned(drafted(confidence[:half], generation=request[:half]))
    confidence, request = confidence[half:], request[half:]
    expected = expected_of_next(confidence, request, succession.pull)[:-1]
    survival, is_pair = np.cumprod(confidence, axis=1), request[1:] == request[:-1]
    after = survival[1:][is_pair]
    error, error_told = (
        np.square(each[is_pair] - after).mean() for each in (expected, survival[:-1])
    )
    assert error < 0.9 * error_told


def test_drafts_that_do_not_depend_on_those_before_are_pulled_nearly_all_the_way() -> None:
    assert learned(drafted(independent(1, 4000))).pull.min() > 0.85


def test_where_a_draft_says_all_that_its_request_is_like_nothing_is_pulled() -> None:
    """Survivals wander: what came before the last one tells nothing more."""
    rng, steps = np.random.default_rng(2), []
    level = 0.0
    for _ in range(6000):
        level = np.clip(level + 0.2 * rng.standard_normal(), -2.0, 2.0)
        steps.append(np.full(K, 1.0 / (1.0 + np.exp(-level))))
    assert learned(drafted(np.array(steps))).pull.max() < 0.15


def test_little_evidence_pulls_little() -> None:
    few = learned(drafted(independent(3, 9)))
    assert 0.0 < few.pull.max() <= 8 / (8 + 64)
    assert Succession(K).pull.tolist() == [0.0] * K


def test_drafts_make_pairs_across_lessons_but_not_across_gaps_and_requests() -> None:
    confidence = independent(4, 300)
    whole = learned(drafted(confidence)).state()
    parts = [drafted(confidence[i : i + 7], step_id=range(i, i + 7)) for i in range(0, 294, 7)]
    parts.append(drafted(confidence[294:], step_id=range(294, 300)))
    np.testing.assert_array_equal(learned(*parts).state(), whole)
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
    calibrated = learned(drafted(confidence), calibration=boastful).state()
    np.testing.assert_allclose(calibrated, learned(drafted(mended)).state(), rtol=0.05, atol=1e-4)


def test_what_is_restored_is_pulled_alike() -> None:
    old, heir = learned(drafted(independent(7, 400))), Succession(K)
    heir.restore(old.state())
    np.testing.assert_allclose(heir.pull, old.pull)
    assert not heir.update()  # nothing came since


def test_more_slots_than_before_are_made_room_for() -> None:
    confidence = independent(8, 40)
    many = drafted(confidence)._replace(slot_id=np.arange(40, dtype=np.uint32) % 2 * 900)
    succession = learned(drafted(confidence[:5]), many)
    assert succession.state().evidence.tolist() == [4.0] * K
