"""What the page says in words, for each state that a scheduler can be in."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from specsched_scheduler.page.payload import payload
from specsched_scheduler.page.verdict import verdict
from specsched_scheduler.telemetry.snapshot import (
    CostSnapshot,
    HistogramSnapshot,
    LearningSnapshot,
    PlanOutcomesSnapshot,
)

from tests.scheduler_service.page.snapshots import (
    CHOICE,
    NEWEST,
    executor,
    position,
    second,
    snapshot,
)


def of(it, policy="throughput"):
    return verdict(snapshot(it, policy=policy), it)


# ===================== Does it help =====================


def test_it_helps():
    told = of(executor())
    assert told.tone == "good"
    assert told.headline == "Scheduling helps: 1.50 times as fast as without drafts."
    assert "100 steps took 1.00 s" in told.evidence
    assert "would have taken 1.50 s" in told.evidence
    assert told.cautions == ()


@pytest.mark.parametrize(
    ("plain_ms", "measured_ms", "tone", "words"),
    [
        (700.0, 1000.0, "bad", "Drafts cost more than they bring: 0.70 times"),
        (1000.0, 1000.0, "even", "neither help nor cost"),
        (1030.0, 1050.0, "even", "neither help nor cost"),
        # The curve is off by a third: what no drafts would have taken may be off as much.
        (1200.0, 1400.0, "even", "Unclear: 0.86 to 1.20 times"),
        (2000.0, 1400.0, "good", "helps: 1.43 times"),
        (800.0, 1400.0, "bad", "0.57 times"),
    ],
)
def test_the_tone_follows_what_steps_took(plain_ms, measured_ms, tone, words):
    seconds = (second(plain_ms=plain_ms, measured_ms=measured_ms),)
    told = of(executor(decisions={"seconds": seconds}))
    assert told.tone == tone
    assert words in told.headline


def test_only_what_is_recent_counts():
    seconds = (second(ago_s=40, plain_ms=1.0), second(ago_s=2))
    assert of(executor(decisions={"seconds": seconds})).tone == "good"


def test_too_few_steps_are_no_evidence():
    seconds = (second(num_judged_steps=9),)
    told = of(executor(decisions={"seconds": seconds}))
    assert (told.tone, "Too few steps" in told.headline) == ("even", True)


def test_idle_is_told_with_what_was_before():
    told = of(executor(decisions={"seconds": (second(ago_s=300),)}))
    assert told.tone == "waiting"
    assert "Idle: no decision within 30 s, the last one 5 min ago." in told.headline
    assert "1.50 times as fast as without drafts, over 1000 steps" in told.evidence


def test_no_cost_model_is_no_verdict():
    it = executor(cost=CostSnapshot("no_model", False, 0, (), (), ()), choice=None)
    told = of(it)
    assert (told.tone, "no cost model" in told.headline) == ("even", True)
    assert "Without a cost model everything is verified." in told.why


# ===================== Nothing to judge =====================


def test_no_drafts_yet():
    told = of(executor(decisions={"num_draft_tokens": 0}))
    assert (told.tone, "No drafts yet" in told.headline, told.why) == ("waiting", True, "")


@pytest.mark.parametrize(
    ("role", "words"), [("shadow", "Shadow"), ("draining", "Draining"), ("suspended", "Suspended")]
)
def test_who_is_not_followed_says_so_and_who_is(role, words):
    told = of(executor(role=role, active_scheduler="v0"))
    assert told.tone == "waiting"
    assert told.headline.startswith(words)
    assert "v0 is followed." in told.evidence
    assert "specsched diff" in told.evidence or role != "shadow"
    assert "Nobody is followed" in of(executor(role=role, active_scheduler="")).evidence


def test_the_process_comes_first():
    assert "Starting" in payload(snapshot(executor()), "compiling", ())["verdict"]["headline"]
    assert "Ending" in payload(snapshot(executor()), "ending", ())["verdict"]["headline"]
    nobody = payload(snapshot(), "serving", ())["verdict"]
    assert "No executor is attached" in nobody["headline"]
    assert "specsched doctor" in nobody["evidence"]


def test_the_payload_is_plain_json():
    told = payload(snapshot(executor()), "serving", {"v2", "v1"})
    assert json.loads(json.dumps(told, allow_nan=False)) == told | {"promotable": ["v1", "v2"]}
    assert told["verdict"] is None
    assert told["executors"][0]["verdict"]["tone"] == "good"


# ===================== Why =====================


def test_some_drafts_are_worth_it():
    assert of(executor()).why == (
        "Step 7, policy throughput: 6 requests with 18 drafts, the best 10 are verified. 16 rows"
        " cost 12.00 ms and are expected to bring 13.5 tokens; 6 without drafts cost 10.00 ms and"
        " bring 6. All 24 would cost 20.00 ms. Next drafts are to be 3 long."
    )


@pytest.mark.parametrize(
    ("changes", "policy", "words"),
    [
        ({"budget": 18}, "throughput", "18 drafts, all are verified."),
        ({"budget": 1, "num_draft_tokens": 1}, "throughput", "1 draft, it is verified."),
        ({"budget": 0}, "throughput", "24 would cost 20.00 ms: more than the drafts are expected"),
        ({"budget": 0, "num_draft_tokens": 0}, "slo(20)", "6 requests without drafts: nothing"),
        ({"is_flat": True}, "ratio", "cost the same here, so more drafts are free"),
        ({}, "fixed(3)", "fixed(3) decides without weighing cost."),
        ({"budget": 0}, "off", "verifies nothing, whatever it costs"),
        ({"next_draft_tokens": 0}, "throughput", "No drafts are asked for next."),
    ],
)
def test_each_choice_has_its_reason(changes, policy, words):
    newest = replace(NEWEST, **changes)
    rows = newest.num_requests + newest.budget
    choice = replace(CHOICE, chosen=replace(CHOICE.chosen, num_rows=rows))
    why = of(executor(decisions={"newest": newest}, choice=choice), policy).why
    assert words in why
    assert policy in why


# ===================== What is wrong =====================


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decisions": {"num_missed": 11}}, "11 of 1011 plan requests had no answer"),
        ({"decisions": {"num_invalid": 11}}, "11 of 1011 plan requests had no answer"),
        ({"decisions": {"num_policy_errors": 2}}, "Policies failed at 2 plan requests"),
        ({"learning": LearningSnapshot(1000, 0, 0, 0, 0, 3)}, "Learning failed 3 times"),
        (
            {"plan_outcomes": PlanOutcomesSnapshot(989, {"late": 9, "torn": 2})},
            "11 of 1000 steps had no plan in time since the executor started, most of them: late.",
        ),
        (
            {"decisions": {"latency_s": HistogramSnapshot((0.001, 0.01), (980, 20, 0), 0.1)}},
            "One plan in a hundred takes 10 ms",
        ),
        ({"confidences": {"num_frozen_steps": 65}}, "have not changed for 65 steps"),
        ({"confidences": {"num_repaired": 19}}, "19 confidences were no probability"),
        (
            {"confidences": {"positions": (position(0.02), position(0.13, position=1))}},
            "off by 13% at draft position 1",
        ),
        ({"decisions": {"seconds": (second(measured_ms=1300.0),)}}, "1.30 times what was"),
    ],
)
def test_what_has_an_alert_is_told(changes, words):
    (caution,) = of(executor(**changes)).cautions
    assert words in caution


@pytest.mark.parametrize(
    "changes",
    [
        {"decisions": {"num_missed": 10}},
        {"plan_outcomes": None},
        {"plan_outcomes": PlanOutcomesSnapshot(90, {"late": 9})},
        {"decisions": {"num_decisions": 90, "num_missed": 9}},
        {"decisions": {"latency_s": HistogramSnapshot((0.001, 0.01), (991, 9, 0), 0.1)}},
        {"confidences": {"num_frozen_steps": 64}},
        {"confidences": {"num_frozen_steps": None}},
        {"confidences": {"num_repaired": 18}},
        {"confidences": {"positions": (position(None), position(0.1))}},
        {"decisions": {"seconds": (second(measured_ms=1240.0),)}},
        {"decisions": {"seconds": (second(ago_s=90, measured_ms=5000.0),)}},
    ],
)
def test_below_the_threshold_of_its_alert_nothing_is_told(changes):
    assert of(executor(**changes)).cautions == ()
