"""Whether scheduling helps now, why it chose what it chose, and what is wrong: in words. Pure.

The thresholds of what is wrong are those of deploy/prometheus/alerts.yml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specsched_scheduler.telemetry.snapshot import ExecutorSnapshot, Snapshot

from .cautions import cautions
from .reasons import why

__all__ = ["WINDOW_S", "Verdict", "nobody_attached", "process_verdict", "verdict"]

WINDOW_S = 30
"""What counts as now."""
MIN_STEPS = 10
HELPS, HURTS = 1.02, 0.98
MAX_DISAGREEMENT = 1.1

Tone = Literal["good", "even", "bad", "waiting"]
Phase = Literal["compiling", "serving", "ending"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """headline: one sentence; evidence: what it rests on; why: of the newest decision; each may be
    empty but the first. cautions: what an operator should look into."""

    tone: Tone
    headline: str
    evidence: str = ""
    why: str = ""
    cautions: tuple[str, ...] = ()


def process_verdict(phase: Phase) -> Verdict | None:
    """Where the process as a whole does not serve, that is all there is to say."""
    if phase == "compiling":
        return Verdict("waiting", "Starting: the decision is being compiled. Executors wait.")
    if phase == "ending":
        return Verdict("waiting", "Ending: executors are handed over to another scheduler.")
    return None


def nobody_attached() -> Verdict:
    """Of a scheduler without executors."""
    return Verdict(
        "waiting",
        "No executor is attached: there is nothing to decide.",
        "Start one with `specsched executor`; if one runs, `specsched doctor` tells what keeps it"
        " away. It works without a scheduler meanwhile, by its fallback.",
    )


def verdict(snapshot: Snapshot, executor: ExecutorSnapshot) -> Verdict:
    """Of one attached executor."""
    if executor.role == "shadow":
        return _not_followed(snapshot, executor, "Shadow: it decides every step, and is compared.")
    if executor.role == "draining":
        return _not_followed(snapshot, executor, "Draining: it is not to be followed any more.")
    if executor.role == "suspended":
        return _not_followed(
            snapshot, executor, "Suspended: the executor does not trust its decisions for now."
        )
    if executor.decisions.num_draft_tokens == 0:
        return Verdict(
            "waiting",
            "No drafts yet: nothing was to be chosen since the executor attached.",
            "Steps are planned where requests are being answered and drafts are present.",
        )
    tone, headline, evidence = _judged(snapshot, executor)
    reason = why(snapshot.policy, executor)
    return Verdict(tone, headline, evidence, reason, cautions(snapshot, executor))


def _not_followed(snapshot: Snapshot, executor: ExecutorSnapshot, headline: str) -> Verdict:
    active = executor.active_scheduler
    evidence = f"{active} is followed." if active else "Nobody is followed: the fallback decides."
    if executor.role == "shadow":
        evidence += " `specsched diff` holds the decisions of both against each other."
    reason = why(snapshot.policy, executor)
    return Verdict("waiting", headline, evidence, reason, cautions(snapshot, executor))


def _judged(snapshot: Snapshot, executor: ExecutorSnapshot) -> tuple[Tone, str, str]:
    seconds = [
        each for each in executor.decisions.seconds if each.time_s > snapshot.time_s - WINDOW_S
    ]
    num_steps = sum(each.num_judged_steps for each in seconds)
    measured_ms = sum(each.measured_ms for each in seconds)
    plain_ms = sum(each.plain_ms for each in seconds)
    if not any(each.num_decisions for each in seconds):
        return _idle(snapshot, executor)
    if executor.cost.model_state != "ok":
        return (
            "even",
            "Whether it helps cannot be told: there is no cost model, every draft is verified.",
            "The executor profiled fewer than three sizes of steps; `--profile` tells how many.",
        )
    if num_steps < MIN_STEPS or measured_ms <= 0.0:
        return "even", "Too few steps so far to tell whether it helps.", f"Judged: {num_steps}."
    predicted_ms = sum(each.predicted_ms for each in seconds)
    speed_up, by_curve = plain_ms / measured_ms, plain_ms / predicted_ms
    evidence = (
        f"In the last {WINDOW_S} s, {num_steps} steps took {measured_ms / 1e3:.2f} s. Their tokens"
        f" without drafts would have taken {plain_ms / 1e3:.2f} s, by the cost curve."
    )
    return *_told(speed_up, by_curve), evidence


def _told(speed_up: float, by_curve: float) -> tuple[Tone, str]:
    """by_curve: the speed-up if steps took what is predicted for them.

    Plain decoding is priced by the cost curve, so where the curve is off the truth lies between.
    """
    low, high = sorted((speed_up, by_curve))
    if low >= HELPS:
        return "good", f"Scheduling helps: {speed_up:.2f} times as fast as without drafts."
    if high <= HURTS:
        return (
            "bad",
            f"Drafts cost more than they bring: {speed_up:.2f} times as fast as without.",
        )
    if high / low <= MAX_DISAGREEMENT:
        return "even", "Drafts neither help nor cost: about as fast as without."
    return "even", (
        f"Unclear: {low:.2f} to {high:.2f} times as fast as without drafts. Steps take"
        f" {by_curve / speed_up:.2f} times what is predicted."
    )


def _idle(snapshot: Snapshot, executor: ExecutorSnapshot) -> tuple[Tone, str, str]:
    busy = [each.time_s for each in executor.decisions.seconds if each.num_decisions]
    since = f"the last one {_ago(snapshot.time_s - max(busy))} ago" if busy else "none"
    times = executor.step_times
    evidence = ""
    if times.num_steps >= MIN_STEPS and times.measured_s > 0.0:
        evidence = (
            f"Since the executor attached: {times.plain_s / times.measured_s:.2f} times as fast as"
            f" without drafts, over {times.num_steps} steps."
        )
    return "waiting", f"Idle: no decision within {WINDOW_S} s, {since}.", evidence


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
