"""Lanes, comparisons and switches as tables or as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from specsched_protocol.console import to_stdout
from specsched_protocol.enum_words import enum_word
from specsched_protocol.policy_text import policy_text
from specsched_protocol.v1 import executor_pb2, scheduler_pb2

from specsched_client.cli._console import bare_table, plain, print_json

__all__ = [
    "failures_text",
    "print_changes",
    "print_diff",
    "print_lanes",
    "role_text",
    "transport_text",
]


def role_text(role: scheduler_pb2.LaneRole.ValueType, given_up_for: str = "") -> str:
    """A role in lower case, and why the scheduler was given up, if it was."""
    name = enum_word(scheduler_pb2.LaneRole.DESCRIPTOR, role)
    return f"{name}, given up: {given_up_for}" if given_up_for else name


def transport_text(transport: scheduler_pb2.Transport.ValueType) -> str:
    """How steps travel, in lower case."""
    return enum_word(scheduler_pb2.Transport.DESCRIPTOR, transport).replace("_", " ")


def failures_text(failures: scheduler_pb2.PolicyFailures) -> str:
    """How many plan requests policies failed at since the attachment, and the newest failure."""
    if failures.num_requests == 1:
        return f"1 policy error: {failures.error}"
    return f"{failures.num_requests} policy errors, the newest: {failures.error}"


def print_lanes(answer: executor_pb2.ListSchedulersResponse, *, as_json: bool) -> None:
    """Who is attached, by role."""
    if as_json:
        print_json(plain(answer))
        return
    table = bare_table("scheduler", "role", "lane", "epoch", "version", "policy", "plans", "faults")
    for each in answer.schedulers:
        table.add_row(
            each.name,
            role_text(each.role, each.given_up_for),
            f"{each.lane}, {transport_text(each.transport)}",
            str(each.epoch),
            each.version,
            policy_text(each.policy),
            str(each.comparison.num_sound_decisions),
            _counts(each.comparison.num_faults),
        )
    console = to_stdout()
    console.print(table)
    for each in answer.schedulers:
        if each.HasField("policy_failures"):
            console.print(f"late by {each.name}: {failures_text(each.policy_failures)}")
    console.print(f"elected: {answer.elected_scheduler or 'nobody yet'}")
    console.print(f"switches: {_counts(answer.num_switches)}")


def print_diff(answer: executor_pb2.ListSchedulersResponse, *, as_json: bool) -> None:
    """How each shadow's decisions differ from those that were followed."""
    shadows = [each for each in answer.schedulers if not each.active]
    if as_json:
        compared = {each.name: plain(each.comparison) for each in shadows}
        active = next((each.name for each in answer.schedulers if each.active), None)
        print_json({"active": active, "shadows": compared})
        return
    console = to_stdout()
    if not shadows:
        console.print("no shadow is attached")
        return
    table = bare_table(
        "shadow", "steps", "same", "budget", "expected tokens", "expected ms", "regret", "faults"
    )
    for each in shadows:
        table.add_row(each.name, *_comparison_row(each.comparison))
    console.print(table)
    console.print(
        "per step, shadow / active; budget: mean difference (mean of its size); regret: tokens lost"
        " against the best budget in hindsight"
    )


def print_changes(name: str, changes: Sequence[scheduler_pb2.LaneChange], *, as_json: bool) -> bool:
    """What each executor did; whether all of them did what was asked."""
    if as_json:
        print_json({"scheduler": name, "executors": [plain(c) for c in changes]})
    else:
        console = to_stdout()
        for change in changes:
            console.print(f"{change.executor_name}: {_change_text(change.reply)}")
    return all(change.reply.done for change in changes)


def _change_text(reply: scheduler_pb2.LaneReply) -> str:
    if not reply.done:
        return f"not done: {reply.reason}"
    if reply.previous_scheduler == reply.active_scheduler:
        return f"{reply.active_scheduler} is followed, as before"
    previous = reply.previous_scheduler or "nobody"
    told = f"{previous} -> {reply.active_scheduler} from step {reply.step_id}"
    if not (reply.HasField("previous_policy") and reply.HasField("active_policy")):
        return told
    before, now = policy_text(reply.previous_policy), policy_text(reply.active_policy)
    return told if before == now else f"{told}; policy changes from {before} to {now}"


def _comparison_row(c: scheduler_pb2.LaneComparison) -> tuple[str, ...]:
    share = c.num_same_decisions / c.num_steps if c.num_steps else 0.0
    return (
        str(c.num_steps),
        f"{share:.1%}",
        f"{c.mean_budget_difference:+.2f} ({c.mean_absolute_budget_difference:.2f})",
        f"{c.mean_expected_tokens:.2f} / {c.mean_active_expected_tokens:.2f}",
        f"{c.mean_expected_ms:.2f} / {c.mean_active_expected_ms:.2f}",
        f"{c.mean_regret_tokens:.3f} / {c.mean_active_regret_tokens:.3f}",
        _counts(c.num_faults),
    )


def _counts(counts: object) -> str:
    pairs = sorted(dict(counts).items())  # type: ignore[call-overload]
    return ", ".join(f"{number} {reason}" for reason, number in pairs if number) or "none"
