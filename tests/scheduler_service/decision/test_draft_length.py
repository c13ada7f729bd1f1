"""How long drafts are: what outcomes and costs make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from specsched_protocol.plan import StepReport
from specsched_scheduler.decision.codes import NO_CAP, Feature, PolicyCode
from specsched_scheduler.decision.cost import CostModel, CostTable
from specsched_scheduler.decision.draft_length import (
    DraftLength,
    DraftLengthPlan,
    next_draft_tokens,
)
from specsched_scheduler.decision.draft_length.loads import (
    MAX_PROBE_PERIOD_OFF,
    MIN_PROBE_PERIOD,
)
from specsched_scheduler.decision.draft_length.outcome import outcome_of
from specsched_scheduler.decision.draft_length.plan import MIN_PROBE_STEPS
from specsched_scheduler.decision.draft_length.probing import MAX_PROBE_STEPS
from specsched_scheduler.decision.finished import finished_steps, reports_of
from specsched_scheduler.decision.step import PolicyRule

from tests.scheduler_service.decision.draft_length_reference import ReferenceDraftLength

K = 4
THROUGHPUT = PolicyRule(int(PolicyCode.THROUGHPUT))


def machine(row_ms: float, draft_token_ms: float) -> CostTable:
    """Steps of 10 ms, each row of which takes some time more, and each draft token, of however many
    requests."""
    draft = {n: {1: (draft_token_ms * n,), 8: (draft_token_ms * n,)} for n in range(1, K + 1)}
    return CostModel(
        verify={n: (10.0 + row_ms * n,) for n in range(1, 65)},
        capture_limit=64,
        draft=draft.pop(K),
        short_drafts=draft,
    ).compile()


TABLE = machine(row_ms=0.1, draft_token_ms=0.5)
# The same machine when drafting has become three times as dear, and rows twice.
DEARER = machine(row_ms=0.2, draft_token_ms=1.5)


class Steps:
    """Steps in a row, of drafts that have just these chances by position."""

    def __init__(self, seed: int = 0, table: CostTable = TABLE) -> None:
        self.learner = DraftLength(K)
        self.learner.begin(table)
        self.table = table
        self.step_id = 0
        self.asked_before = 0
        self.rng = np.random.default_rng(seed)

    def run(self, num_steps, accepts, *, num_requests=1, room=NO_CAP):
        """The lengths asked for. room: most drafts of a request that are verified."""
        return [self._run(accepts, num_requests, room) for _ in range(num_steps)]

    def _run(self, accepts, num_requests, room):
        self.step_id += 1
        asked = int(next_draft_tokens(THROUGHPUT, self.step_id, self.learner.plan, K))
        self.learner.observe(self.report(accepts, num_requests, room), self.table)
        self.asked_before = asked
        return asked

    def report(self, accepts, num_requests, room=NO_CAP):
        """Of a step with the drafts asked for before."""
        verified = min(self.asked_before, room)
        outcomes = self.rng.random((num_requests, K)) < np.asarray(accepts)
        accepted = np.minimum(np.cumprod(outcomes, axis=1).sum(axis=1), verified)
        slots = np.arange(num_requests, dtype=np.uint32)
        return StepReport(
            step_id=self.step_id,
            num_tokens=num_requests * (1 + verified),
            padded_num_tokens=num_requests * (1 + verified),
            num_prefill_tokens=0,
            num_sampling=num_requests,
            asked_draft_tokens=self.asked_before,
            context_tokens=0,
            draft_ms=0.0,
            verify_ms=0.0,
            slot_id=slots,
            generation=slots,
            num_verified=np.full(num_requests, verified, dtype=np.uint32),
            num_accepted=accepted.astype(np.uint32),
            teaches=np.ones(num_requests, dtype=np.bool_),
        )


def test_useful_drafts_stay_full():
    steps = Steps()
    assert set(steps.run(600, [0.9] * K)) == {K}
    assert steps.learner.plan.probe_period == 0


def test_useless_drafts_are_switched_off_and_probed():
    steps = Steps()
    asked = steps.run(1500, [0.02] * K)
    assert steps.learner.plan.draft_tokens == 0
    settled = np.array(asked[600:])
    probes = np.flatnonzero(settled > 0)
    # Two steps a probe, one probe in 32 to 128 steps; most are short.
    assert 2 * (900 // MAX_PROBE_PERIOD_OFF) <= len(probes) <= 2 * (900 // MIN_PROBE_PERIOD)
    assert np.median(settled[probes]) == 1


def test_drafts_are_as_long_as_pays():
    """Two positions are worth their rows, the others never are."""
    steps = Steps()
    steps.run(1000, [0.9, 0.8, 0.05, 0.5], num_requests=2)
    assert steps.learner.plan.draft_tokens == 2


def test_what_became_useful_is_found_again():
    steps = Steps()
    steps.run(600, [0.02] * K, num_requests=8)
    assert steps.learner.plan.draft_tokens == 0
    steps.run(1200, [0.95] * K, num_requests=8)
    assert steps.learner.plan.draft_tokens == K


STAIRS = CostModel({4: (10.0,), 8: (14.0,), 12: (14.0,)}, 12, {4: (1.0,)}).compile()


def outcome_of_four(num_verified):
    """Gain and extra of a step of as many requests, all of whose verified drafts are accepted."""
    steps = Steps(table=STAIRS)
    steps.asked_before = 2
    verified = np.array(num_verified, dtype=np.uint32)
    report = replace(
        steps.report([1.0] * K, 4),
        num_tokens=4 + int(verified.sum()),
        num_verified=verified,
        num_accepted=verified,
    )
    gain, extra = np.zeros((2, K))
    outcome_of(finished_steps([report]), 0, STAIRS, gain, extra)
    return gain.tolist(), extra


def test_positions_share_what_a_stair_costs_where_drafts_were_left_out():
    """Seven drafts: all of the stair lies under the first position's rows, and is none's alone."""
    gain, extra = outcome_of_four([2, 2, 2, 1])
    assert gain == [1.0, 0.75, 0.0, 0.0]
    assert extra == pytest.approx([0.4 * 4 / 7 + 0.1, 0.4 * 3 / 7, 0.0, 0.0])


def test_a_position_costs_what_it_adds_where_every_draft_was_verified():
    """Second tokens fill the size that the first ones need: to leave them out saves nothing."""
    gain, extra = outcome_of_four([2, 2, 2, 2])
    assert gain == [1.0, 1.0, 0.0, 0.0]
    assert extra == pytest.approx([0.4 + 0.1, 0.0, 0.0, 0.0])


def test_each_load_has_a_length_of_its_own():
    """What is best at 8 requests says little of one; without drafts nothing is learned of it."""
    steps = Steps()
    steps.run(100, [0.02] * K, num_requests=8)
    steps.run(10, [0.02] * K, num_requests=1)  # seen, and far from known
    assert steps.learner.plan.draft_tokens == K
    steps.run(600, [0.02] * K, num_requests=8)
    assert steps.learner.plan.draft_tokens == 0
    assert set(steps.run(150, [0.9] * K, num_requests=1)[5:]) == {K}
    assert set(steps.run(20, [0.02] * K, num_requests=8)[5:]) <= {0, 1, 2, 3}
    assert steps.learner.plan.draft_tokens == 0


def steps_until_drafts_of(length, steps, accepts, num_requests):
    """Steps until drafts are at least so long; a test fails rather than go on for ever."""
    for count in range(4 * MAX_PROBE_PERIOD_OFF):
        if steps.learner.plan.draft_tokens >= length:
            return count
        steps.run(1, accepts, num_requests=num_requests)
    raise AssertionError(f"the way back was not found in {count} steps: {steps.learner.plan}")


@pytest.mark.parametrize("seed", range(5))
def test_the_way_back_is_found_in_bounded_time(seed):
    """One request whose drafts bring nothing, as 16 do; then one again, of prompts whose drafts are
    good; and bad prompts, then good ones, at the same load: all after probes became rare."""
    steps, useless, good = Steps(seed), [0.0] * K, [0.8] * K
    steps.run(2000, useless, num_requests=1)
    assert steps.learner.plan.probe_period == MAX_PROBE_PERIOD_OFF
    steps.run(300, useless, num_requests=16)
    assert steps.learner.plan.draft_tokens == 0
    assert steps_until_drafts_of(2, steps, good, 1) <= 2 * MAX_PROBE_PERIOD_OFF
    for num_requests in (1, 16):
        steps.run(2000, useless, num_requests=num_requests)
        assert steps.learner.plan.draft_tokens == 0
        assert steps_until_drafts_of(1, steps, good, num_requests) <= 2 * MAX_PROBE_PERIOD_OFF
        steps_until_drafts_of(2, steps, good, num_requests)


def test_what_is_clear_is_followed_at_once():
    """Full drafts that take 1.2 steps and bring nothing; 16 requests show that in a few steps."""
    steps = Steps()
    steps.run(12, [0.0] * K, num_requests=16)
    assert steps.learner.plan.draft_tokens == 0
    alone = Steps()
    alone.run(40, [0.0] * K)
    assert alone.learner.plan.draft_tokens == 0


def test_promising_probes_are_followed_up():
    """One request, whose drafts became good: a probe of two steps alone would take thousands."""
    steps = Steps()
    steps.run(400, [0.0] * K)
    assert steps.learner.plan.draft_tokens == 0
    asked = np.array(steps.run(600, [0.95] * K)) > 0
    assert steps.learner.plan.draft_tokens == K
    in_a_row = np.diff(np.flatnonzero(np.diff(np.append(0, asked).astype(int)) != 0))
    assert MIN_PROBE_STEPS < in_a_row[::2].max() <= MAX_PROBE_STEPS


def lengths_of(steps, accepts, num_steps, num_requests):
    """The length that follows each step."""
    lengths = []
    for _ in range(num_steps):
        steps.run(1, accepts, num_requests=num_requests)
        lengths.append(steps.learner.plan.draft_tokens)
    return np.array(lengths)


@pytest.mark.parametrize("num_requests", [4, 16, 64])
@pytest.mark.parametrize("seed", range(2))
def test_around_the_pivot_there_is_one_change_in_50_steps_at_most(seed, num_requests):
    """A draft of one token brings as many more tokens as it takes more time: none is as good."""
    lengths = lengths_of(Steps(seed), [0.9 / 10.4, 0.0, 0.0, 0.0], 2000, num_requests)
    at = np.flatnonzero(np.diff(lengths))
    begin = at < 50  # from what a drafter is believed to bring at first
    assert 1 <= begin.sum() <= 2
    assert (np.diff(at[begin.sum() - 1 :]) > 50).all()


# Of 64 requests, drafts of three tokens are 0.5 % faster than of four and 8 % than of two.
NEARLY_EQUAL = [0.95, 0.947, 0.944, 0.784]


@pytest.mark.parametrize("seed", range(4))
def test_a_length_that_is_a_little_better_is_found_and_kept(seed):
    lengths = lengths_of(Steps(seed), NEARLY_EQUAL, 3000, num_requests=64)
    assert set(lengths) <= {3, 4}
    assert (lengths[1500:] == 3).mean() > 0.8
    assert (np.diff(lengths) != 0).sum() <= 6


def test_new_prices_count_at_once():
    """What was learned of 8 requests' drafts in hundreds of steps, and of none in some probes."""
    for accepts in ([0.9] * K, [0.0] * K):
        steps, afresh = Steps(), Steps(table=DEARER)
        steps.run(500, accepts, num_requests=8)
        steps.table = DEARER
        steps.run(1, accepts, num_requests=8)
        afresh.run(500, accepts, num_requests=8)
        (learned,), (expected,) = steps.learner.loads(), afresh.learner.loads()
        is_seen = (learned.evidence > 0) & (expected.evidence > 0)
        assert is_seen.any()
        assert learned.extra[is_seen] == pytest.approx(expected.extra[is_seen], rel=1e-6)


def test_a_few_steps_without_room_do_not_decide():
    """One step in twenty has no room for drafts, as beside a full chunk, and a request less."""
    steps = Steps()
    for _ in range(40):
        steps.run(19, [0.9] * K, num_requests=8)
        steps.run(1, [0.9] * K, num_requests=7, room=0)
        assert steps.learner.plan.draft_tokens == K


@pytest.mark.parametrize("seed", range(4))
def test_many_steps_at_once_are_learned_as_one_by_one(seed):
    """Random loads, chunks of prefill, chances and gaps, taken in in lots of random size."""
    rng = np.random.default_rng(seed)
    reference, compiled = ReferenceDraftLength(K, TABLE), DraftLength(K)
    compiled.begin(TABLE)
    step_id, plans = 0, set()
    for _ in range(120):
        num_requests, chance = int(rng.choice([1, 2, 3, 8, 12])), rng.choice([0.02, 0.3, 0.9])
        reports = []
        for _ in range(int(rng.integers(0, 30))):
            step_id += 1 if rng.random() < 0.98 else 3
            asked = int(next_draft_tokens(THROUGHPUT, step_id, compiled.plan, K))
            reports.append(random_report(rng, step_id, num_requests, asked, chance))
            reference.observe(reports[-1], TABLE)
        compiled.follow(finished_steps(reports), TABLE)
        if any(report.num_sampling for report in reports):
            reference.plan_anew(TABLE)
        assert compiled.plan == reference.plan
        plans.add(compiled.plan)
    assert len({plan.draft_tokens for plan in plans}) > 2
    for state in compiled.loads():
        expected = reference.loads[state.log2_requests]
        for name in ("gain", "extra", "evidence", "seen"):
            np.testing.assert_allclose(getattr(state, name), getattr(expected, name), rtol=1e-9)


def random_report(rng, step_id, num_requests, asked, chance):
    """A step whose requests had up to `asked` drafts, some of them without room for any."""
    verified = (
        rng.integers(0, asked + 1, num_requests) if rng.random() < 0.9 else [0] * num_requests
    )
    verified = np.array(verified, dtype=np.uint32)
    held = np.cumprod(rng.random((num_requests, K)) < chance, axis=1).sum(axis=1)
    num_prefill = int(rng.choice([0, 0, 17]))
    num_tokens = num_requests + int(verified.sum()) + num_prefill
    slots = np.arange(num_requests, dtype=np.uint32)
    return StepReport(
        step_id=step_id,
        num_tokens=num_tokens,
        padded_num_tokens=num_tokens,
        num_prefill_tokens=num_prefill,
        num_sampling=num_requests if rng.random() < 0.97 else 0,
        asked_draft_tokens=asked,
        context_tokens=int(rng.integers(0, 1000)),
        draft_ms=0.0,
        verify_ms=0.0,
        slot_id=slots,
        generation=slots,
        num_verified=verified,
        num_accepted=np.minimum(held, verified).astype(np.uint32),
        teaches=np.ones(num_requests, dtype=np.bool_),
    )


def test_no_model_no_opinion():
    empty = CostModel(verify={1: (1.0,)}, capture_limit=1).compile()
    assert set(Steps(table=empty).run(400, [0.0] * K)) == {K}


@pytest.mark.parametrize(
    ("code", "parameter", "expected"),
    [
        (PolicyCode.OFF, 0.0, 0),
        (PolicyCode.FIXED, 3.0, 3),
        (PolicyCode.FIXED, 9.0, K),
        (PolicyCode.THRESHOLD, 0.5, K),
        (PolicyCode.THROUGHPUT, 0.0, 1),
        (PolicyCode.SLO, 0.0, 1),
    ],
)
def test_no_draft_that_the_policy_cannot_verify(code, parameter, expected):
    plan = DraftLengthPlan(1, 0, K)
    assert next_draft_tokens(PolicyRule(int(code), parameter), 5, plan, K) == expected


def test_drafts_are_full_where_their_length_is_left_out():
    rule = THROUGHPUT._replace(left_out=int(Feature.DRAFT_LENGTH))
    assert next_draft_tokens(rule, 5, DraftLengthPlan(1, 0, 1), K) == K


def test_probes_come_two_steps_in_a_row():
    plan = DraftLengthPlan(0, MIN_PROBE_PERIOD, 3)
    lengths = [next_draft_tokens(THROUGHPUT, step, plan, K) for step in range(2 * MIN_PROBE_PERIOD)]
    assert [step for step, length in enumerate(lengths) if length] == [0, 1, 32, 33]
    assert set(lengths) == {0, 3}


def test_reports_and_their_columns_say_the_same():
    rng = np.random.default_rng(3)
    reports = [random_report(rng, step, num, K, 0.5) for step, num in enumerate((1, 4, 2))]
    back = reports_of(finished_steps(reports))
    assert [str(each) for each in back] == [str(each) for each in reports]
    assert reports_of(finished_steps([])) == []
