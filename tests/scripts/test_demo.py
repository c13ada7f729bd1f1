"""The parts of the demo: its arithmetic, its pictures, and that no process outlives it."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from rich.console import Console
from specsched_protocol.v1.executor_pb2 import StepCounters
from specsched_protocol.v1.plan_pb2 import MODEL_STATE_OK, Decision, PolicySpec
from specsched_protocol.v1.scheduler_pb2 import WatchDecisionsResponse

from scripts.demo import processes
from scripts.demo.__main__ import DISTURBED, Shown, verdict
from scripts.demo.conclusion import conclusion
from scripts.demo.processes import DemoError, supervised
from scripts.demo.state import DemoState
from scripts.demo.summary import Round, difference, on_plan_share, summary_table, summed
from scripts.demo.view import decision_line, screen, verified_bar

WAIT = "import time; time.sleep(60)"


def watched(budget: int, num_draft_tokens: int) -> WatchDecisionsResponse:
    policy = PolicySpec(name="fixed", parameters={"k": 3})
    decision = Decision(step_id=7, budget=budget, policy=policy, expected_tokens=4.5)
    return WatchDecisionsResponse(
        decision=decision, num_requests=6, num_draft_tokens=num_draft_tokens
    )


def one_round(planned: int, late: int) -> Round:
    counters = StepCounters(num_planned_steps=planned, num_output_tokens=50)
    if late:
        counters.num_fallback_steps["late"] = late
    return Round("throughput", counters, elapsed_s=2.0, plan_us_p50=30.0, texts=("a",))


# ===================== Arithmetic =====================


def test_difference_takes_the_start_away_reason_by_reason():
    start = StepCounters(num_steps=10, num_fallback_steps={"late": 2, "torn": 1})
    end = StepCounters(num_steps=25, num_fallback_steps={"late": 5, "torn": 1, "no_scheduler": 3})
    delta = difference(end, start)
    assert delta.num_steps == 15
    assert dict(delta.num_fallback_steps) == {"late": 3, "no_scheduler": 3}


def test_plan_share_counts_steps_with_drafts_of_all_rounds():
    assert on_plan_share([one_round(98, 0), one_round(96, 6)]) == pytest.approx(194 / 200)
    assert on_plan_share([one_round(0, 0)]) == 1.0


def test_tokens_per_second():
    assert one_round(1, 0).tokens_per_second == 25.0


def counted(policy: str, elapsed_s: float, num_steps: int, *, num_verified: int = 0) -> Round:
    counters = StepCounters(
        num_steps=num_steps,
        num_output_tokens=300,
        num_verified_tokens=num_verified,
        num_accepted_tokens=num_verified // 2,
        num_fallback_steps={"late": 1},
    )
    return Round(policy, counters, elapsed_s, plan_us_p50=30.0, texts=("a",))


def test_both_rounds_of_a_policy_are_summed():
    rounds = [counted(policy, 2.0, 50) for policy in ("throughput", "off", "off", "throughput")]
    sums = summed(rounds)
    assert [one.policy for one in sums] == ["throughput", "off"]
    assert sums[0].counters.num_steps == 100
    assert dict(sums[0].counters.num_fallback_steps) == {"late": 2}
    assert sums[0].tokens_per_second == pytest.approx(600 / 4.0)
    assert rounds[0].counters.num_steps == 50


@pytest.mark.parametrize(
    ("elapsed_s", "words"),
    [
        (5.0, "speculation pays here, 2.00 times the tokens/s of off"),
        (20.0, "speculation does not pay here, 0.50 times the tokens/s of off"),
        (10.2, "speculation neither pays nor costs here, 0.98 times the tokens/s of off"),
    ],
)
def test_conclusion_says_what_was_measured_and_why(elapsed_s, words):
    off = counted("off", 10.0, 100)
    (told,) = conclusion([counted("throughput", elapsed_s, 50, num_verified=80), off])
    assert words in told
    took = elapsed_s / 50 / (10.0 / 100)
    assert f"put out 2.00 times the tokens and took {took:.2f} times as long; 50% of" in told


@pytest.mark.parametrize(
    ("num_drafted", "elapsed_s", "words"),
    [
        (160, 20.0, "Of its 160 drafts 50% were made but not verified, which off saves, and 50 st"),
        (80, 20.0, "It verified nearly every draft, and the rejected ones took time"),
        (160, 10.0, ""),
    ],
)
def test_conclusion_says_why_speculation_lost(num_drafted, elapsed_s, words):
    lost = counted("throughput", elapsed_s, 50, num_verified=80)
    lost.counters.num_drafted_tokens = num_drafted
    (told,) = conclusion([lost, counted("off", 10.0, 100)])
    assert told.partition("were accepted.")[2].strip().startswith(words)
    assert bool(told.partition("were accepted.")[2]) == bool(words)


def test_conclusion_needs_a_round_without_drafts_and_one_with():
    assert list(conclusion([counted("throughput", 5.0, 50, num_verified=80)])) == []
    assert list(conclusion([counted("threshold(1)", 5.0, 50), counted("off", 5.0, 50)])) == []


@pytest.mark.parametrize("is_disturbed", [True, False])
def test_a_busy_machine_is_told(is_disturbed, capsys):
    rounds = [counted("throughput", 5.0, 50, num_verified=80), counted("off", 10.0, 100)]
    assert verdict(Console(width=200), Shown(rounds, is_disturbed)) == 0
    assert (DISTURBED in capsys.readouterr().out) == is_disturbed


# ===================== Pictures =====================


def rendered(renderable) -> str:
    console = Console(width=110, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_summary_shows_fallbacks_by_reason():
    text = rendered(summary_table([one_round(97, 3)]))
    assert "97/100 (97.0%)" in text
    assert "3 late" in text


def test_summary_calls_nothing_a_share_where_no_plan_was_needed():
    text = rendered(summary_table([one_round(0, 0)]))
    assert "none needed" in text
    assert "0/0" not in text


@pytest.mark.parametrize(
    ("budget", "drafts", "bar"), [(0, 0, " "), (0, 8, "▁"), (8, 8, "█"), (99, 8, "█")]
)
def test_bar_is_the_share_of_the_drafts(budget, drafts, bar):
    assert verified_bar(watched(budget, drafts)) == bar


def test_screen_shows_the_end_of_each_answer_and_the_last_decision():
    state = DemoState()
    assert rendered(screen(state, 110, 40)).strip().startswith("starting")
    state.begin_round("fixed(k=3)")
    state.answers[0].text = "first line\n" + "middle\n" * 20 + "last line"
    state.answers[1].text = "with [brackets] that are no markup"
    state.decisions.append(watched(5, 12))
    text = rendered(screen(state, 110, 40))
    assert "last line" in text
    assert "first line" not in text
    assert "[brackets]" in text
    assert "budget   5" in text
    assert all(answer.prompt.title in text for answer in state.answers)


@pytest.mark.parametrize("height", [24, 25, 30, 50])
def test_screen_fits_a_terminal_so_that_the_decisions_are_seen(height):
    state = DemoState()
    state.begin_round("fixed(k=3)")
    for answer in state.answers:
        answer.text = "line\n" * 20
    state.decisions.append(watched(5, 12))
    lines = rendered(screen(state, 110, height)).splitlines()
    assert len(lines) < height
    assert "budget" in lines[-3]


def test_decision_line_names_the_policy_as_it_is_typed():
    assert "fixed(k=3)" in decision_line(watched(5, 12)).plain


def test_decision_line_says_where_there_is_no_cost_model():
    decided = watched(5, 12)
    assert "no cost model" in decision_line(decided).plain
    decided.decision.model_state = MODEL_STATE_OK
    decided.decision.expected_ms = 31.5
    assert decision_line(decided).plain.endswith("in  31.5 ms")


# ===================== Processes =====================


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def python_instead_of_specsched(monkeypatch):
    monkeypatch.setattr(processes, "COMMAND", sys.executable)


@pytest.mark.usefixtures("python_instead_of_specsched")
async def test_a_process_that_ends_early_is_reported_with_its_last_words(tmp_path):
    log = tmp_path / "executor.log"
    forever = asyncio.create_task(asyncio.sleep(60))
    async with processes._running(log, "-c", "print('no such model'); raise SystemExit(2)") as one:
        with pytest.raises(
            DemoError,
            match=r"executor process ended early with exit status 2;\s+[\s\S]*no such model",
        ):
            await supervised(forever, {log: one})
    assert forever.cancelled()


async def test_an_interrupted_round_ends_before_what_it_uses():
    forever = asyncio.create_task(asyncio.sleep(60))
    waiting = asyncio.create_task(supervised(forever, {}))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert forever.cancelled()


@pytest.mark.usefixtures("python_instead_of_specsched")
async def test_a_failing_demo_leaves_no_process(tmp_path):
    started = []

    async def fail_midway():
        async with processes._running(tmp_path / "a.log", "-c", WAIT) as one:
            started.append((one.pid, alive(one.pid)))
            raise RuntimeError("mid-way")

    with pytest.raises(RuntimeError, match="mid-way"):
        await fail_midway()
    ((pid, was_alive),) = started
    assert was_alive
    assert not alive(pid)
