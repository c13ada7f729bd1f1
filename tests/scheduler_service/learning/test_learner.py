"""Joining reports with confidences, and the learner over both."""

from __future__ import annotations

import numpy as np
import pytest
from specsched_protocol.plan import StepReport
from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.decision.codes import Feature, PolicyCode
from specsched_scheduler.decision.cost import ContextCost, CostModel
from specsched_scheduler.decision.draft_length.plan import MIN_PROBE_STEPS
from specsched_scheduler.decision.finished import finished_steps
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.document import LearnedState, read_state, write_state
from specsched_scheduler.learning.learner import ExecutorKind, Learner
from specsched_scheduler.learning.pairing import DraftedSteps, Pairing

K = 3
PROFILE = CostModel(verify={1: (1.0,), 8: (1.2,), 16: (1.6,), 32: (2.4,)}, capture_limit=32)
KIND = ExecutorKind("model", "drafter", K, "print")


def confidences(source_step_id, slots, generations=None, *, value=0.5, is_greedy=False):
    num = len(slots)
    return DraftedSteps(
        source_step_id=np.array([source_step_id]),
        row_begin=np.array([0, num]),
        slot_id=np.array(slots, dtype=np.uint32),
        generation=np.array(generations or [1] * num, dtype=np.uint32),
        is_greedy=np.full(num, is_greedy),
        confidence=np.full((num, K), value, dtype=np.float32),
    )


def report(step_id, slots, generations=None, **changes):
    num = len(slots)
    values = {
        "step_id": step_id,
        "num_tokens": 8,
        "padded_num_tokens": 8,
        "num_prefill_tokens": 0,
        "num_sampling": num,
        "asked_draft_tokens": K,
        "context_tokens": 0,
        "draft_ms": 0.0,
        "verify_ms": 1.2,
        "slot_id": np.array(slots, dtype=np.uint32),
        "generation": np.array(generations or [1] * num, dtype=np.uint32),
        "num_verified": np.full(num, K, dtype=np.uint32),
        "num_accepted": np.full(num, 1, dtype=np.uint32),
        "teaches": np.full(num, True),
    }
    return StepReport(**(values | changes))


NOTHING = confidences(0, []).since(1)


def take(pairing, *reports):
    return pairing.take(finished_steps(reports))


def observe(learner, *reports, drafted=NOTHING):
    learner.observe(finished_steps(reports), drafted)


def counts(pairing):
    return pairing.num_paired, pairing.num_unpaired, pairing.num_altered


def test_drafts_are_those_of_the_step_before():
    pairing = Pairing()
    pairing.add(confidences(6, [0, 1], value=0.6))
    pairing.add(confidences(7, [0, 1], value=0.7))
    _, observations = take(pairing, report(8, [0, 1]))
    assert 1.0 / (1.0 + np.exp(-observations.logit)) == pytest.approx(0.7)
    assert counts(pairing) == (2, 0, 0)


def test_rows_are_found_by_slot_and_generation_in_any_order():
    pairing = Pairing()
    step = confidences(1, [4, 2, 9], [1, 5, 1])
    step.confidence[:, 0] = [0.4, 0.2, 0.9]
    pairing.add(step)
    of_class, observations = take(pairing, report(2, [9, 2, 4, 7], [1, 6, 1, 1]))
    found = 1.0 / (1.0 + np.exp(-observations.logit[:, 0]))
    assert found == pytest.approx([0.9, 0.4])
    assert of_class.tolist() == [SAMPLED, SAMPLED]
    assert len(set(observations.group.tolist())) == 2
    assert counts(pairing) == (2, 2, 0)


def test_a_report_teaches_once_and_without_confidences_never():
    pairing = Pairing()
    pairing.add(confidences(1, [0]))
    assert take(pairing, report(2, [0])) is not None
    assert take(pairing, report(2, [0])) is None
    assert take(pairing, report(3, [0])) is None
    assert counts(pairing) == (1, 2, 0)


def test_altered_and_unverified_drafts_are_left_out():
    pairing = Pairing()
    pairing.add(confidences(1, [0, 1, 2]))
    _, observations = take(
        pairing,
        report(
            2,
            [0, 1, 2],
            teaches=np.array([True, False, True]),
            num_verified=np.array([2, 3, 0], dtype=np.uint32),
            num_accepted=np.array([2, 1, 0], dtype=np.uint32),
        ),
    )
    assert observations.num_verified.tolist() == [2]
    assert counts(pairing) == (1, 0, 1)


def test_what_is_no_probability_is_not_known():
    pairing = Pairing()
    step = confidences(1, [0])
    step.confidence[0] = [0.5, 1.5, np.nan]
    pairing.add(step)
    _, observations = take(pairing, report(2, [0]))
    assert np.isfinite(observations.logit[0]).tolist() == [True, False, False]


def teach(learner, num_steps, *, begin=1, **changes):
    for step in range(begin, begin + num_steps):
        observe(learner, report(step + 1, range(8), **changes), drafted=confidences(step, range(8)))
        learner.update()


def test_the_cost_of_drafts_goes_with_the_length_that_the_next_report_tells():
    profile = CostModel(
        verify=PROFILE.verify,
        capture_limit=32,
        draft={1: (1.0,), 32: (1.0,)},
        short_drafts={1: {1: (0.5,), 32: (0.5,)}},
    )
    learner = Learner(KIND, profile)
    for step in range(1, 300):
        # The drafts of a step are short where the NEXT report says that one token was asked for.
        asked = 1 if step % 2 else K
        next_is_short = not step % 2
        ms = 0.8 if next_is_short else 1.0
        observe(learner, report(step, range(8), asked_draft_tokens=asked, draft_ms=ms))
        learner.update()
    ratios = learner.corrector.correction().draft_ratios
    assert ratios[1] == pytest.approx(1.6, rel=0.1)
    assert ratios[0] == pytest.approx(1.0, rel=0.05)


def test_steps_full_of_prefill_do_not_teach_the_cost():
    learner = Learner(KIND, PROFILE)
    teach(learner, 40, num_prefill_tokens=6, verify_ms=9.0)
    assert learner.corrector.num_steps == 0
    teach(learner, 40, begin=41, num_prefill_tokens=1, verify_ms=9.0)
    assert learner.corrector.num_steps > 30


def test_frozen_nothing_changes_but_what_is_paired():
    learner = Learner(KIND, PROFILE)
    learner.is_frozen = True
    teach(learner, 100, num_accepted=np.zeros(8, dtype=np.uint32), verify_ms=5.0)
    assert learner.calibrator.calibration.is_identity
    assert learner.corrector.num_steps == 0
    assert learner.probe_rows() == 0
    assert learner.draft_length.plan == (K, 0, K, MIN_PROBE_STEPS)
    assert learner.draft_length.loads() == []
    assert learner.pairing.num_paired == 800


def test_an_entry_restores_another_learner():
    first = Learner(KIND, PROFILE)
    teach(first, 100, num_accepted=np.zeros(8, dtype=np.uint32), verify_ms=5.0)
    assert not first.calibrator.calibration.is_identity
    assert first.corrector.is_worth_it
    second = Learner(KIND, PROFILE)
    second.restore(first.entry())
    assert second.calibrator.calibration.equals(first.calibrator.calibration)
    assert second.corrector.model().compile().verify_ms[8] == pytest.approx(
        first.corrector.model().compile().verify_ms[8]
    )
    elsewhere = Learner(ExecutorKind("model", "drafter", K, "another"), PROFILE)
    elsewhere.restore(first.entry())
    assert elsewhere.calibrator.calibration.equals(first.calibrator.calibration)
    assert elsewhere.corrector.model() == PROFILE


def taught_that_drafts_bring_nothing(**changes):
    """A learner whose drafts of 8 requests brought nothing."""
    learner = Learner(KIND, PROFILE, **changes)
    teach(learner, 60, num_tokens=32, num_accepted=np.zeros(8, dtype=np.uint32))
    return learner


def test_draft_lengths_are_handed_over():
    first = taught_that_drafts_bring_nothing()
    teach(first, 1, begin=61, asked_draft_tokens=0)  # ends what looks like a probe
    assert first.draft_length.plan.draft_tokens == 0
    second = Learner(KIND, PROFILE)
    second.restore(read_state(write_state(LearnedState(entries=(first.entry(),)))).entries[0])
    # It does not know yet what load there is; from the first step on it is as the old one was.
    for learner in (first, second):
        teach(learner, 1, begin=62, asked_draft_tokens=0)
    assert second.draft_length.plan == first.draft_length.plan
    (ours,), (theirs,) = second.draft_length.loads(), first.draft_length.loads()
    assert ours[:3] == theirs[:3]
    assert np.stack(ours[3:]) == pytest.approx(np.stack(theirs[3:]))


def test_draft_lengths_are_of_one_profile_and_one_policy():
    entry = taught_that_drafts_bring_nothing().entry()
    for other in (
        Learner(ExecutorKind("model", "drafter", K, "another"), PROFILE),
        Learner(KIND, PROFILE, policy=PolicyCode.SLO),
    ):
        other.restore(entry)
        assert other.draft_length.loads() == []
    learner = taught_that_drafts_bring_nothing()
    known = learner.draft_length.loads()
    assert learner.draft_length.plan.draft_tokens == 0
    learner.set_policy(PolicyCode.RATIO)
    assert learner.draft_length.loads() == []
    assert learner.draft_length.plan.draft_tokens == 0  # how sure drafts are holds under any policy
    learner.set_policy(PolicyCode.THROUGHPUT)
    assert [each.log2_requests for each in learner.draft_length.loads()] == [3]
    np.testing.assert_array_equal(learner.draft_length.loads()[0].seen, known[0].seen)


def test_what_a_policy_leaves_out_is_learned_all_the_same():
    left_out = Feature.CALIBRATION | Feature.CORRECTION
    learner = Learner(KIND, PROFILE, left_out=left_out)
    teach(learner, 100, num_accepted=np.zeros(8, dtype=np.uint32), verify_ms=5.0)
    assert learner.calibration.is_identity
    np.testing.assert_array_equal(learner.table.verify_ms, PROFILE.compile().verify_ms)
    assert not learner.calibrator.calibration.is_identity
    learner.set_policy(PolicyCode.THROUGHPUT)
    assert learner.calibration is learner.calibrator.calibration
    assert learner.table.verify_ms[8] > 2.0 * PROFILE.compile().verify_ms[8]


def test_context_left_out_is_in_no_price():
    profile = CostModel(PROFILE.verify, 32, context=ContextCost(1e-3, 100.0))
    learner = Learner(KIND, profile, left_out=Feature.CONTEXT)
    assert learner.table.context_ms_per_token == 0.0
    learner.set_policy(PolicyCode.THROUGHPUT)
    assert learner.table.context_ms_per_token == 1e-3


def test_draft_lengths_with_something_left_out_begin_as_they_are_and_go_their_own_way():
    learner = taught_that_drafts_bring_nothing()
    whole, entry = learner.draft_length, learner.entry()
    assert entry.draft_length is not None
    learner.set_policy(PolicyCode.THROUGHPUT, Feature.FILL)
    (begun,), (known,) = learner.draft_length.loads(), whole.loads()
    np.testing.assert_array_equal(begun.seen, known.seen)
    assert learner.draft_length.plan.draft_tokens == 0
    teach(learner, 10, begin=61)
    assert learner.draft_length.loads()[0].seen[0] > known.seen[0]
    np.testing.assert_array_equal(whole.loads()[0].seen, known.seen)


def test_draft_lengths_with_something_left_out_are_never_handed_over():
    entry = taught_that_drafts_bring_nothing().entry()
    learner = Learner(KIND, PROFILE, left_out=Feature.FILL)
    learner.restore(entry)
    assert learner.draft_length.loads() == []
    teach(learner, 10)
    assert learner.draft_length.loads() != []
    assert learner.entry().draft_length is None


def test_frozen_lengths_go_on_with_the_load_and_are_not_probed():
    learner = taught_that_drafts_bring_nothing()
    assert learner.draft_length.plan.probe_period > 0
    learner.is_frozen = True
    teach(learner, 10, begin=61)
    assert learner.draft_length.plan == (0, 0, 0, MIN_PROBE_STEPS)
    for step in range(71, 81):
        observe(learner, report(step, [0]))
    # Of one request nothing was seen, but that drafts are not accepted.
    assert learner.draft_length.plan == (0, 0, 0, MIN_PROBE_STEPS)


def test_who_was_taught_by_more_drafts_knows_more():
    first = Learner(KIND, PROFILE)
    teach(first, 30)
    second = Learner(KIND, PROFILE)
    assert first.knows_more(second.entry())
    second.restore(first.entry())
    assert not first.knows_more(second.entry())
    teach(second, 10, begin=31)
    assert second.knows_more(first.entry())


def test_another_profile_begins_anew():
    learner = Learner(KIND, PROFILE)
    teach(learner, 100, verify_ms=5.0)
    faster = CostModel(verify={1: (0.5,), 8: (0.6,), 16: (0.8,)}, capture_limit=16)
    learner.set_profile(faster, "other")
    assert learner.corrector.model() == faster
    assert learner.entry().cost is None
    assert learner.entry().cost_fingerprint == "other"


def test_a_start_is_kept_until_there_is_evidence():
    start = Calibration.identity(K).with_class(GREEDY, np.full(K, 2.0), np.full(K, 0.3))
    learner = Learner(KIND, PROFILE, start)
    teach(learner, 20)
    assert learner.calibrator.calibration.equals(start)


def random_steps(rng, num_steps):
    """Reports of some requests and confidences for most of them, in other orders, some late."""
    reports, drafted = [], NOTHING
    for step_id in range(1, num_steps + 1):
        slots = rng.permutation(6)[: rng.integers(1, 7)]
        rows = confidences(step_id - 1, rng.permutation(slots)[: rng.integers(1, 7)])
        rows.confidence[:] = rng.uniform(0.0, 1.02, rows.confidence.shape)
        rows.is_greedy[:] = rng.random(len(rows.is_greedy)) < 0.5
        drafted = drafted.followed_by(rows if rng.random() < 0.9 else NOTHING)
        num_verified = rng.integers(0, K + 1, len(slots))
        changes = {
            "num_tokens": int(rng.integers(0, 32)),
            "padded_num_tokens": int(rng.integers(1, 32)),
            "verify_ms": float(rng.uniform(1.0, 3.0)),
            "draft_ms": float(rng.uniform(0.0, 0.2)),
            "num_verified": num_verified.astype(np.uint32),
            "num_accepted": rng.integers(0, num_verified + 1).astype(np.uint32),
            "teaches": rng.random(len(slots)) < 0.9,
        }
        reports.append(report(step_id, slots, **changes))
    return reports, drafted


@pytest.mark.parametrize("seed", range(3))
def test_many_steps_at_once_teach_what_they_teach_one_by_one(seed):
    rng = np.random.default_rng(seed)
    at_once, one_by_one = Learner(KIND, PROFILE), Learner(KIND, PROFILE)
    seen = {at_once: [], one_by_one: []}
    for learner, paired in seen.items():
        learner.on_paired = paired.append
    reports, drafted = random_steps(rng, 400)
    begin = 0
    while begin < len(reports):
        end = begin + int(rng.integers(1, 40))
        is_new = (drafted.source_step_id >= begin) & (drafted.source_step_id < end)
        first, num = int(np.argmax(is_new)), int(is_new.sum())
        observe(at_once, *reports[begin:end], drafted=part_of(drafted, first, num))
        for each in reports[begin:end]:
            steps = np.flatnonzero(drafted.source_step_id == each.step_id - 1)
            its = part_of(drafted, steps[0], 1) if len(steps) else NOTHING
            observe(one_by_one, each, drafted=its)
        assert at_once.update() == one_by_one.update()
        begin = end
    assert counts(at_once.pairing) == counts(one_by_one.pairing)
    for column in ("logit", "num_verified", "num_accepted", "group"):
        together, apart = (
            np.concatenate([getattr(observations, column) for _, observations in paired])
            for paired in seen.values()
        )
        np.testing.assert_array_equal(together, apart)
    assert at_once.calibrator.calibration.equals(one_by_one.calibrator.calibration)
    assert at_once.corrector.correction() == one_by_one.corrector.correction()
    assert at_once.corrector.num_steps == one_by_one.corrector.num_steps > 300
    assert at_once.draft_length.plan == one_by_one.draft_length.plan


def part_of(drafted, first, num):
    rest = drafted.since(first)
    rows = (each[: rest.row_begin[num]] for each in rest[2:])
    return DraftedSteps(rest.source_step_id[:num], rest.row_begin[: num + 1], *rows)
