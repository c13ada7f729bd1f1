"""Throughput of oracles and schedules on the same steps.

An oracle takes, in every step, the budget with the largest

    N + sum over its B best drafts of p - rate * ms(B),

p being what it knows. For the right `rate`, the one that comes out of it, no choice of budgets has
more expected tokens per millisecond over all steps (Dinkelbach 1967). Choosing the best ratio in
each step by itself would not do: steps that prefill, or that few requests share, differ in price.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from specsched_protocol.student_t import student_t

from .probabilities import by_confidence, by_request
from .step import OracleStep, best_first

__all__ = ["OracleReport", "OracleResult", "Regret", "judge_choices"]

_NUM_BLOCKS: Final = 20
_MAX_ITERATIONS: Final = 50

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Regret:
    """Share of an oracle's throughput that a schedule lost; low, high: 95 % interval.

    None where there are too few steps for one.
    """

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class OracleResult:
    """tokens_per_second: of the oracle. regrets: of each judged schedule against it."""

    tokens_per_second: float
    regrets: tuple[Regret, ...]


@dataclass(frozen=True, slots=True)
class OracleReport:
    """tokens_per_second: of each judged schedule. oracles: by name, see the package.

    open_share: tokens of the first oracle that count by their chance, their outcome not being
    known.
    """

    num_steps: int
    open_share: float
    tokens_per_second: tuple[float, ...]
    oracles: Mapping[str, OracleResult]

    def document(self, *names: str) -> dict[str, Any]:
        """As plain values. names: of the judged schedules."""
        return {
            "num_steps": self.num_steps,
            "open_share": self.open_share,
            "tokens_per_second": dict(zip(names, self.tokens_per_second, strict=True)),
            "oracles": {
                oracle: {
                    "tokens_per_second": result.tokens_per_second,
                    "regret": {
                        name: asdict(regret)
                        for name, regret in zip(names, result.regrets, strict=True)
                    },
                }
                for oracle, result in self.oracles.items()
            },
        }


@dataclass(frozen=True, slots=True)
class _Option:
    """By budget, float64 [B + 1]: tokens believed in, tokens that came, and of these open ones."""

    believed: Floats
    tokens: Floats
    num_open: Floats


def judge_choices(steps: Sequence[OracleStep]) -> OracleReport:
    """Regrets of all choices of the steps; at least one step, equally many choices in each."""
    probabilities = by_confidence(steps)
    outcomes = [step.outcome(p) for step, p in zip(steps, probabilities, strict=True)]
    beliefs = {
        "confidence": probabilities,
        "request": by_request(steps, probabilities, outcomes),
        "clairvoyant": outcomes,
    }
    taken = [_taken(steps, outcomes, index) for index in range(len(steps[0].choices))]
    found = {name: _oracle(steps, each, outcomes) for name, each in beliefs.items()}
    best, num_open = found["confidence"]
    return OracleReport(
        num_steps=len(steps),
        open_share=num_open / float(best[0].sum()),
        tokens_per_second=tuple(_rate(each) for each in taken),
        oracles={
            name: OracleResult(_rate(best), tuple(_regret(each, best) for each in taken))
            for name, (best, _) in found.items()
        },
    )


def _taken(steps: Sequence[OracleStep], outcomes: Sequence[Floats], index: int) -> Floats:
    """Float64 [2, steps]: tokens and ms of a schedule."""
    pairs = zip(steps, outcomes, strict=True)
    return np.array([step.taken(step.choices[index], outcome) for step, outcome in pairs]).T


def _oracle(
    steps: Sequence[OracleStep], beliefs: Sequence[Floats], outcomes: Sequence[Floats]
) -> tuple[Floats, float]:
    """(float64 [2, steps]: tokens and ms; tokens among them whose outcome is not known)."""
    options = [_option(*each) for each in zip(steps, beliefs, outcomes, strict=True)]
    prices = [step.ms for step in steps]
    rate = 0.0
    for _ in range(_MAX_ITERATIONS):
        budgets = [
            int(np.argmax(option.believed - rate * ms))
            for option, ms in zip(options, prices, strict=True)
        ]
        believed = _sum(options, budgets, lambda option: option.believed)
        better = believed / sum(ms[b] for ms, b in zip(prices, budgets, strict=True))
        if better <= rate * (1 + 1e-12):
            break
        rate = better
    taken = [
        (option.tokens[b], ms[b]) for option, ms, b in zip(options, prices, budgets, strict=True)
    ]
    return np.array(taken).T, _sum(options, budgets, lambda option: option.num_open)


def _option(step: OracleStep, belief: Floats, outcome: Floats) -> _Option:
    ranked = best_first(belief, step.is_present)[: len(step.ms) - 1]
    is_open = np.arange(belief.shape[1]) >= step.num_verified[:, None]
    columns = (belief, outcome, np.where(is_open, outcome, 0.0))
    sums = [np.concatenate(([0.0], np.cumsum(each.reshape(-1)[ranked]))) for each in columns]
    return _Option(len(step.group) + sums[0], len(step.group) + sums[1], sums[2])


def _sum(
    options: Sequence[_Option], budgets: Sequence[int], pick: Callable[[_Option], Floats]
) -> float:
    return float(sum(pick(option)[b] for option, b in zip(options, budgets, strict=True)))


def _rate(taken: Floats) -> float:
    tokens, ms = taken.sum(axis=1)
    return float(tokens / ms * 1e3)


def _regret(taken: Floats, oracle: Floats) -> Regret:
    """With an interval from leaving out one of 20 stretches of steps after the other."""
    mean = 1.0 - _rate(taken) / _rate(oracle)
    num_steps = taken.shape[1]
    if num_steps < 2 * _NUM_BLOCKS:
        return Regret(mean, None, None)
    block = np.arange(num_steps) * _NUM_BLOCKS // num_steps
    without = [
        1.0 - _rate(taken[:, block != each]) / _rate(oracle[:, block != each])
        for each in range(_NUM_BLOCKS)
    ]
    spread = sum((value - sum(without) / _NUM_BLOCKS) ** 2 for value in without)
    reach = student_t(_NUM_BLOCKS - 1, 0.95) * math.sqrt(spread * (_NUM_BLOCKS - 1) / _NUM_BLOCKS)
    return Regret(mean, mean - reach, mean + reach)
