"""The parts that telemetry is made of, one by one."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from specsched_protocol.histogram import Histogram
from specsched_protocol.plan import StepDecision, StepReport
from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.decision.finished import finished_steps
from specsched_scheduler.learning.calibration.observations import Observations, to_logit
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.pairing import DraftedSteps
from specsched_scheduler.planner import RecentDecision
from specsched_scheduler.telemetry.decisions import NUM_SECONDS, DecisionLog
from specsched_scheduler.telemetry.freezing import FreezeWatch
from specsched_scheduler.telemetry.outcomes import HALF_LIFE, MIN_DRAFTS, DraftOutcomes
from specsched_scheduler.telemetry.steps import StepJudge

# ===================== Freezing =====================


def confidences(step_id: int, rows: dict[int, list[float]], generation: int = 1) -> DraftedSteps:
    """Confidences by slot."""
    return DraftedSteps(
        source_step_id=np.array([step_id]),
        row_begin=np.array([0, len(rows)]),
        slot_id=np.array(list(rows), dtype=np.uint32),
        generation=np.full(len(rows), generation, dtype=np.uint32),
        is_greedy=np.zeros(len(rows), dtype=np.bool_),
        confidence=np.array(list(rows.values()), dtype=np.float32).reshape(len(rows), -1),
    )


def frozen(*steps: DraftedSteps, **options: bool) -> int | None:
    """What is counted, the same whether steps come one by one or all at once."""
    one_by_one, at_once = FreezeWatch(**options), FreezeWatch(**options)
    for step in steps:
        one_by_one.observe(step)
    at_once.observe(functools.reduce(DraftedSteps.followed_by, steps))
    assert one_by_one.num_steps == at_once.num_steps
    return at_once.num_steps


def test_the_same_bits_count_and_others_begin_anew():
    same = {0: [0.5, 0.25], 1: [0.75, 0.5]}
    assert frozen(*(confidences(step, same) for step in range(5))) == 4
    moved = same | {1: [0.75, 0.5000001]}
    assert frozen(confidences(0, same), confidences(1, same), confidences(2, moved)) == 0


def test_rows_may_change_places_and_requests_come_and_go():
    first = confidences(0, {0: [0.5], 1: [0.75]})
    assert frozen(first, confidences(1, {1: [0.75], 0: [0.5], 2: [0.1]})) == 1
    # The same slot, another request: nothing to compare, nothing to begin anew.
    assert frozen(first, first, confidences(2, {0: [0.5]}, generation=2)) == 1


def test_requests_without_confidences_say_nothing():
    nothing = {0: [np.nan, np.nan]}
    assert frozen(*(confidences(step, nothing) for step in range(9))) == 0
    assert frozen(*(confidences(step, {0: [0.5, np.nan]}) for step in range(9))) == 8


def test_a_table_of_rates_is_not_judged():
    assert frozen(*(confidences(s, {0: [0.5]}) for s in range(99)), is_judged=False) is None


# ===================== Outcomes =====================


def observed(confidence: np.ndarray, verified: list[int], accepted: list[int]) -> Observations:
    return Observations(
        to_logit(confidence), np.array(verified), np.array(accepted), np.arange(len(verified))
    )


def test_only_verified_drafts_of_known_confidence_are_judged():
    outcomes = DraftOutcomes(3)
    rows = observed(
        np.array([[0.5, 0.5, 0.5], [0.5, np.nan, 0.5], [0.5, 0.5, 0.5]]), [3, 3, 1], [2, 0, 1]
    )
    outcomes.observe(Calibration.identity(3), [(np.array([0, 1, 1]), rows)])
    # Positions 0: all three. 1 and 2: the first alone, for the second's chain is unknown.
    assert [each.num_drafts for each in outcomes.positions()] == pytest.approx([3, 1, 1], rel=1e-3)
    assert outcomes.num_judged == 5
    assert outcomes.num_accepted == (1 + 0 + 1) + 1 + 0
    assert outcomes.num_expected == pytest.approx(3 * 0.5 + 0.25 + 0.125)


def test_the_calibration_of_the_class_is_applied():
    temperature, intercept = np.ones((2, 1)), np.array([[0.0], [1.0]])
    rows = observed(np.full((2, 1), 0.5), [1, 1], [1, 1])
    outcomes = DraftOutcomes(1)
    outcomes.observe(Calibration(temperature, intercept), [(np.array([0, 1]), rows)])
    assert outcomes.num_expected == pytest.approx(0.5 + 1 / (1 + np.exp(-1.0)))


def test_error_is_that_of_the_bins_and_wants_enough_drafts():
    num = MIN_DRAFTS // 2
    halves = np.concatenate((np.full((num, 1), 0.95), np.full((num, 1), 0.15)))
    accepted = np.concatenate((np.arange(num) < 0.8 * num, np.arange(num) < 0.4 * num))
    rows = observed(halves, [1] * MIN_DRAFTS, accepted.astype(int).tolist())
    few, outcomes = DraftOutcomes(1), DraftOutcomes(1)
    few.observe(Calibration.identity(1), [(np.zeros(999, int), rows.rows(slice(999)))])
    assert few.positions()[0].error is None
    for _ in range(2):
        outcomes.observe(Calibration.identity(1), [(np.zeros(MIN_DRAFTS, int), rows)])
    (position,) = outcomes.positions()
    assert position.num_drafts > MIN_DRAFTS
    assert position.error == pytest.approx((0.15 + 0.25) / 2)
    assert [round(each.predicted, 2) for each in position.bins] == [0.15, 0.95]
    assert [round(each.observed, 2) for each in position.bins] == [0.4, 0.8]


def test_old_drafts_fade():
    outcomes = DraftOutcomes(1)
    old = observed(np.full((HALF_LIFE, 1), 0.5), [1] * HALF_LIFE, [0] * HALF_LIFE)
    new = observed(np.full((HALF_LIFE, 1), 0.5), [1] * HALF_LIFE, [1] * HALF_LIFE)
    for rows in (old, new):
        outcomes.observe(Calibration.identity(1), [(np.zeros(HALF_LIFE, int), rows)])
    assert outcomes.positions()[0].observed == pytest.approx(1 / 1.5)
    assert outcomes.num_judged == 2 * HALF_LIFE


# ===================== Steps =====================

TABLE = CostModel(verify={1: [1.0], 4: [2.0], 16: [4.0]}, capture_limit=16).compile()


def decided(step_id: int, budget: int = 6, expected_ms: float = 4.0) -> RecentDecision:
    zeros = dict.fromkeys(
        ("epoch", "policy_id", "model_state", "flags", "num_repaired_confidences", "decided_ns"), 0
    )
    decision = StepDecision(
        step_id=step_id,
        source_step_id=step_id - 2,
        budget=budget,
        max_verify_len=7,
        next_draft_tokens=7,
        expected_tokens=4.0,
        expected_ms=expected_ms,
        **zeros,
    )
    return RecentDecision(step_id, decision, num_requests=2, num_draft_tokens=14, plan_us=50.0)


def reported(step_id: int, verified=(3, 3), accepted=(2, 0), ms: float = 5.0) -> StepReport:
    num_rows = 2 + sum(verified)
    return StepReport(
        step_id=step_id,
        num_tokens=num_rows,
        padded_num_tokens=num_rows,
        num_prefill_tokens=0,
        num_sampling=2,
        asked_draft_tokens=7,
        context_tokens=0,
        draft_ms=1.0,
        verify_ms=ms - 1.0,
        slot_id=np.arange(2, dtype=np.uint32),
        generation=np.ones(2, dtype=np.uint32),
        num_verified=np.array(verified, dtype=np.uint32),
        num_accepted=np.array(accepted, dtype=np.uint32),
        teaches=np.ones(2, dtype=np.bool_),
    )


def test_a_step_is_judged_once_its_report_is_there():
    judge = StepJudge()
    judge.decided([decided(5), decided(6)])
    judged = judge.finished(finished_steps([reported(4), reported(5)]), TABLE, is_followed=True)
    assert [step.step_id for step in judged] == [5]
    assert (judge.num_steps, judge.predicted_s, judge.measured_s) == (1, 0.004, 0.005)
    # Four tokens of two requests: two steps of two rows, 2 ms each by the staircase.
    assert judge.plain_s == pytest.approx(0.004)
    assert judge.finished(finished_steps([reported(5)]), TABLE, is_followed=True) == []


@pytest.mark.parametrize(
    ("how", "decision", "report"),
    [
        ("another decided it", decided(5, budget=5), reported(5)),
        ("nothing was predicted", decided(5, expected_ms=0.0), reported(5)),
        ("its time is none", decided(5), reported(5, ms=float("inf"))),
    ],
)
def test_what_cannot_be_compared_is_left_out(how, decision, report):
    judge = StepJudge()
    judge.decided([decision])
    assert judge.finished(finished_steps([report]), TABLE, is_followed=True) == [], how
    judge.decided([decided(5)])
    assert judge.finished(finished_steps([reported(5)]), TABLE, is_followed=False) == []
    assert judge.num_steps == 0


def test_decisions_that_are_never_reported_do_not_pile_up():
    judge = StepJudge()
    judge.decided(decided(step_id) for step_id in range(5000))
    assert len(judge._waiting) == 1024


# ===================== Decisions =====================


def test_seconds_and_sizes_add_up_and_are_bounded():
    log = DecisionLog()
    for step_id in range(2 * NUM_SECONDS):
        log.observe([decided(step_id, budget=3), decided(step_id, budget=99)], now_s=step_id + 0.5)
    assert len(log.seconds) == NUM_SECONDS
    assert (log.seconds[-1].num_decisions, log.seconds[-1].budget) == (2, 3 + 14)
    assert log.sizes[2].num_decisions == 4 * NUM_SECONDS
    assert log.budget == 2 * NUM_SECONDS * (3 + 14)  # no more than the drafts there are


def test_the_step_that_is_explained_had_drafts_if_one_did_of_late():
    log = DecisionLog()
    with_drafts, without = decided(1, budget=3), replace(decided(2, budget=0), num_draft_tokens=0)
    log.observe([without], now_s=100.0)
    assert log.chosen is without
    log.observe([with_drafts, without], now_s=101.0)
    log.observe([without], now_s=104.0)
    assert (log.newest, log.chosen) == (without, with_drafts)
    log.observe([without], now_s=110.0)
    assert log.chosen is without


def test_a_bound_of_a_histogram_belongs_to_its_bucket():
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.sum == 7.5
