"""What the table means on this machine, in words, from its own figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scripts.demo.summary import Round

__all__ = ["conclusion"]

BASELINE = "off"
NOTICEABLE = 0.05
"""Two passes over six prompts tell no smaller differences from chance."""


def conclusion(rounds: Sequence[Round]) -> Iterator[str]:
    """A sentence or two for each policy beside `off`; nothing without a round of `off`.

    rounds: one for each policy. Its speed beside that of `off` is the ratio of what its steps
    brought over the ratio of what they took.
    """
    baseline = next((one for one in rounds if one.policy == BASELINE), None)
    if baseline is None or not baseline.counters.num_steps:
        return
    for one in rounds:
        if one is not baseline and one.counters.num_steps and one.counters.num_verified_tokens:
            yield _judged(one, baseline)


def _judged(one: Round, baseline: Round) -> str:
    speed = one.tokens_per_second / baseline.tokens_per_second
    tokens = _tokens_per_step(one) / _tokens_per_step(baseline)
    time = _seconds_per_step(one) / _seconds_per_step(baseline)
    accepted = one.counters.num_accepted_tokens / one.counters.num_verified_tokens
    if speed >= 1 + NOTICEABLE:
        verdict = "speculation pays here"
    elif speed <= 1 - NOTICEABLE:
        verdict = "speculation does not pay here"
    else:
        verdict = "speculation neither pays nor costs here"
    return (
        f"{one.policy}: {verdict}, {speed:.2f} times the tokens/s of {BASELINE}. A step put out"
        f" {tokens:.2f} times the tokens and took {time:.2f} times as long;"
        f" {accepted:.0%} of the verified drafts were accepted.{_why_it_lost(one, speed)}"
    )


def _why_it_lost(one: Round, speed: float) -> str:
    if speed > 1 - NOTICEABLE:
        return ""
    counted = one.counters
    unused = 1 - counted.num_verified_tokens / max(counted.num_drafted_tokens, 1)
    if unused < NOTICEABLE:
        return " It verified nearly every draft, and the rejected ones took time all the same."
    return (
        f" Of its {counted.num_drafted_tokens:,} drafts {unused:.0%} were made but not verified,"
        f" which {BASELINE} saves, and {counted.num_steps:,} steps are few to learn costs and"
        " acceptance in."
    )


def _tokens_per_step(one: Round) -> float:
    return one.counters.num_output_tokens / one.counters.num_steps


def _seconds_per_step(one: Round) -> float:
    return one.elapsed_s / one.counters.num_steps
