"""What an operator should look into, in words. Pure.

Each has an alert of the same threshold in deploy/prometheus/alerts.yml, and docs/operations.md says
what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator

from specsched_scheduler.telemetry.snapshot import ExecutorSnapshot, HistogramSnapshot, Snapshot

__all__ = ["cautions", "quantile"]

MAX_MISSED_SHARE = 0.01
MIN_PLANS = 100
"""Below, one that is late says nothing: the first ones often are."""
MAX_PLAN_S = 0.005
MAX_FROZEN_STEPS = 64
MAX_REPAIRED_SHARE = 0.001
MAX_CALIBRATION_ERROR = 0.1
MAX_TIME_ERROR = 0.25
WINDOW_S = 60


def cautions(snapshot: Snapshot, executor: ExecutorSnapshot) -> tuple[str, ...]:
    """In the order in which they matter."""
    return (
        *_decisions(executor),
        *_fallbacks(executor),
        *_learning(executor),
        *_confidences(executor),
        *_step_times(snapshot, executor),
    )


def quantile(histogram: HistogramSnapshot, share: float) -> float | None:
    """The upper bound of the bucket in which that share is reached; None: empty, or beyond all."""
    wanted, seen = share * sum(histogram.counts), 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        seen += count
        if count and seen >= wanted:
            return bound
    return None


def _decisions(executor: ExecutorSnapshot) -> Iterator[str]:
    decisions = executor.decisions
    missed = decisions.num_missed + decisions.num_invalid
    asked = decisions.num_decisions + missed
    if decisions.num_policy_errors:
        yield (
            f"Policies failed at {decisions.num_policy_errors} plan requests since the executor"
            " attached: their steps fell back."
        )
    if missed > MAX_MISSED_SHARE * asked and asked >= MIN_PLANS:
        yield (
            f"{missed} of {asked} plan requests had no answer since the executor attached: is the"
            " machine starved of CPU?"
        )
    slow = quantile(decisions.latency_s, 0.99)
    if slow is not None and slow > MAX_PLAN_S and asked >= MIN_PLANS:
        yield f"One plan in a hundred takes {slow * 1e3:.0f} ms or about as long."


def _fallbacks(executor: ExecutorSnapshot) -> Iterator[str]:
    it = executor.plan_outcomes
    if it is None:
        return
    reasons = {why: count for why, count in it.num_fallback.items() if why != "no_scheduler"}
    num_fallback = sum(reasons.values())
    asked = it.num_planned + num_fallback
    if num_fallback > MAX_MISSED_SHARE * asked and asked >= MIN_PLANS:
        most = max(reasons, key=lambda reason: reasons[reason])
        yield (
            f"{num_fallback} of {asked} steps had no plan in time since the executor started, most"
            f" of them: {most}."
        )


def _learning(executor: ExecutorSnapshot) -> Iterator[str]:
    num_failures = executor.learning.num_failures
    if num_failures:
        yield (
            f"Learning failed {num_failures} times, the log says why: it is frozen until"
            " `specsched calibration resume`."
        )


def _confidences(executor: ExecutorSnapshot) -> Iterator[str]:
    it = executor.confidences
    if (it.num_frozen_steps or 0) > MAX_FROZEN_STEPS:
        yield f"Confidences have not changed for {it.num_frozen_steps} steps: the drafter is stuck."
    if it.num_repaired > MAX_REPAIRED_SHARE * executor.decisions.num_draft_tokens:
        yield f"{it.num_repaired} confidences were no probability and had to be replaced."
    errors = [(each.error, each.position) for each in it.positions if each.error is not None]
    if errors and max(errors)[0] > MAX_CALIBRATION_ERROR:
        error, position = max(errors)
        yield f"Confidences are off by {error:.0%} at draft position {position}."


def _step_times(snapshot: Snapshot, executor: ExecutorSnapshot) -> Iterator[str]:
    recent = [
        each
        for each in executor.decisions.seconds
        if each.time_s > snapshot.time_s - WINDOW_S and each.num_judged_steps
    ]
    predicted = sum(each.predicted_ms for each in recent)
    ratio = sum(each.measured_ms for each in recent) / predicted if predicted > 0.0 else 1.0
    if abs(ratio - 1.0) > MAX_TIME_ERROR:
        yield f"Steps take {ratio:.2f} times what was predicted for them, in the last minute."
