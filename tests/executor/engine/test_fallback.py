import pytest
from specsched_executor.engine.fallback import (
    Allowance,
    FallbackKind,
    FallbackPolicy,
    FallbackState,
)
from specsched_protocol.plan import NO_BUDGET_CAP, FallbackReason

from tests.executor.engine.test_confidence_gate import plan_request
from tests.executor.engine.tiny import decision

LATE, ALONE = FallbackReason.LATE, FallbackReason.NO_SCHEDULER


def decide(state: FallbackState, budget: int, num_expected: int, **changes):
    return state.decided(decision(plan_request(4, 2), budget, **changes), num_expected)


def test_hold_verifies_all_before_any_decision():
    allowance = FallbackState(FallbackPolicy(), 7).fallen_back(ALONE, 20)
    assert (allowance.budget, allowance.next_draft_tokens) == (NO_BUDGET_CAP, 7)


def test_hold_keeps_the_share_and_the_cap_of_the_last_decision():
    state = FallbackState(FallbackPolicy(), 7)
    decide(state, 5, 20, max_verify_len=2)
    allowance = state.fallen_back(LATE, 30)
    assert (allowance.budget, allowance.max_verify_len, allowance.fallback) == (8, 2, LATE)


def test_hold_of_verify_all_is_verify_all():
    state = FallbackState(FallbackPolicy(), 7)
    decide(state, 20, 20)
    assert state.fallen_back(LATE, 30).budget == NO_BUDGET_CAP


def test_hold_keeps_a_decision_to_verify_nothing():
    state = FallbackState(FallbackPolicy(), 7)
    decide(state, 0, 20)
    assert state.fallen_back(LATE, 30).budget == 0


def test_a_step_that_expected_no_drafts_leaves_the_share():
    state = FallbackState(FallbackPolicy(), 7)
    decide(state, 5, 20)
    decide(state, 0, 0)
    assert state.fallen_back(LATE, 20).budget == 5


def test_draft_length_is_held_until_nobody_is_left_to_raise_it():
    state = FallbackState(FallbackPolicy(), 7)
    decide(state, 5, 20, next_draft_tokens=0)
    assert state.fallen_back(LATE, 20).next_draft_tokens == 0
    assert state.fallen_back(ALONE, 20).next_draft_tokens == 7


def test_a_draft_longer_than_k_is_cut():
    assert decide(FallbackState(FallbackPolicy(), 7), 5, 20, next_draft_tokens=16)
    state = FallbackState(FallbackPolicy(), 7)
    assert decide(state, 5, 20, next_draft_tokens=16).next_draft_tokens == 7


def test_fixed_and_off_do_not_look_at_decisions():
    fixed = FallbackState(FallbackPolicy.parse("fixed(2)"), 7)
    off = FallbackState(FallbackPolicy.parse("off"), 7)
    for state in (fixed, off):
        decide(state, 5, 20)
    assert fixed.fallen_back(LATE, 9).max_verify_len == 2
    assert fixed.fallen_back(LATE, 9).budget == NO_BUDGET_CAP
    assert off.fallen_back(LATE, 9).budget == 0


def test_nothing_is_drafted_that_no_rule_would_verify():
    fixed = FallbackState(FallbackPolicy.parse("fixed(2)"), 7)
    off = FallbackState(FallbackPolicy.parse("off"), 7)
    assert fixed.fallen_back(LATE, 9).next_draft_tokens == 2
    assert FallbackState(FallbackPolicy.parse("fixed(9)"), 7).fallen_back(LATE, 9) == Allowance(
        NO_BUDGET_CAP, 9, 7, LATE
    )
    assert off.fallen_back(ALONE, 9).next_draft_tokens == 0
    assert off.fallen_back(LATE, 9).next_draft_tokens == 7  # the plan of the step to come verifies


def test_policies_are_read_from_text():
    assert FallbackPolicy.parse("hold") == FallbackPolicy(FallbackKind.HOLD)
    assert FallbackPolicy.parse(" fixed(3)") == FallbackPolicy(FallbackKind.FIXED, 3)
    for text in ("fixed", "fixed(-1)", "fixed(x)", "all", ""):
        with pytest.raises(ValueError, match=r"accepted: hold, off, embedded or fixed\(K\)"):
            FallbackPolicy.parse(text)


def test_embedded_follows_the_stand_in_and_holds_without_one():
    state = FallbackState(FallbackPolicy.parse("embedded"), 7)
    assert state.wants_stand_in
    decide(state, 5, 20)
    own = decision(plan_request(5, 3), 4, max_verify_len=3, next_draft_tokens=2)
    allowance = state.fallen_back(LATE, 20, own)
    assert (allowance.budget, allowance.max_verify_len) == (4, 3)
    assert (allowance.next_draft_tokens, allowance.fallback) == (2, LATE)
    assert state.fallen_back(LATE, 20).budget == 5
