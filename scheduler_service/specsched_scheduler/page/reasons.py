"""Why the newest decision is what it is, in words. Pure."""

from __future__ import annotations

from specsched_scheduler.telemetry.snapshot import Choice, ExecutorSnapshot, NewestDecision

__all__ = ["why"]

_BY_RATE = frozenset({"throughput", "ratio", "greedy-causal", "slo"})
"""Policies that weigh tokens against time."""


def why(policy: str, executor: ExecutorSnapshot) -> str:
    """What was chosen in the newest step, and for which numbers; policy: as in options."""
    newest = executor.decisions.chosen or executor.decisions.newest
    if newest is None:
        return ""
    chosen = _chosen(newest)
    because = _because(policy, newest, executor.choice)
    return f"Step {newest.step_id}, policy {policy}: {chosen} {because}{_length(newest)}"


def _chosen(newest: NewestDecision) -> str:
    drafts, budget = newest.num_draft_tokens, newest.budget
    present = f"{_count(newest.num_requests, 'request')} with {_count(drafts, 'draft')}"
    if drafts == 0:
        return f"{_count(newest.num_requests, 'request')} without drafts: nothing to choose."
    if budget == 0:
        return f"{present}, none is verified."
    if budget == drafts:
        return f"{present}, {'it is' if drafts == 1 else 'all are'} verified."
    return f"{present}, the best {budget} are verified."


def _because(policy: str, newest: NewestDecision, choice: Choice | None) -> str:
    name = policy.partition("(")[0]
    if newest.num_draft_tokens == 0:
        return ""
    if name == "off":
        return "The policy verifies nothing, whatever it costs."
    if name not in _BY_RATE:
        return f"{policy} decides without weighing cost."
    if choice is None:
        return "Without a cost model everything is verified."
    if newest.is_flat:
        return "All sizes within reach cost the same here, so more drafts are free."
    return _rates(newest, choice)


def _rates(newest: NewestDecision, choice: Choice) -> str:
    plain, chosen, everything = choice.without_drafts, choice.chosen, choice.all_drafts
    if newest.budget == 0:
        return (
            f"{plain.num_rows} rows cost {plain.ms:.2f} ms, {everything.num_rows} would cost"
            f" {everything.ms:.2f} ms: more than the drafts are expected to bring."
        )
    rest = ""
    if chosen.num_rows < everything.num_rows:
        rest = f" All {everything.num_rows} would cost {everything.ms:.2f} ms."
    return (
        f"{chosen.num_rows} rows cost {chosen.ms:.2f} ms and are expected to bring"
        f" {newest.expected_tokens:.1f} tokens; {plain.num_rows} without drafts cost"
        f" {plain.ms:.2f} ms and bring {plain.num_rows}.{rest}"
    )


def _length(newest: NewestDecision) -> str:
    if newest.next_draft_tokens == 0:
        return " No drafts are asked for next."
    return f" Next drafts are to be {newest.next_draft_tokens} long."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
