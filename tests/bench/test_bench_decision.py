"""How long one decision takes, on one thread, beside plain numpy.

Each sample is one `decide_step` inside compiled code, as the planner loop runs it, between two
reads of CLOCK_MONOTONIC (about 0.03 us). Steps take turns so that no branch is learned by heart.
Rounds are interleaved over the cases; as the machine may be shared, the best round and the median
round are both reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numba import njit
from rich.console import Console
from rich.table import Table
from specsched_scheduler.decision import CostModel, CostTable, DecisionInputs, decide
from specsched_scheduler.decision.fast import decide_step
from specsched_scheduler.decision.step import StepInput
from specsched_scheduler.decision.workspace import new_running_mean, new_workspace
from specsched_scheduler.planner._clock import monotonic_ns
from specsched_scheduler.policies import build_policy

SHAPES = ((256, 7), (1024, 16))
BARS_US = {(256, 7): 20.0, (1024, 16): 80.0}
NUM_STEPS = 16
NUM_TURNS = 20
NUM_ROUNDS = 25
THROUGHPUT = build_policy("throughput")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One shape on one cost table, NUM_STEPS steps of it."""

    num_requests: int
    max_draft_tokens: int
    table_name: str
    table: CostTable
    inputs: tuple[DecisionInputs, ...]

    @property
    def label(self) -> str:
        return f"{self.num_requests} x {self.max_draft_tokens} {self.table_name}"


def make_inputs(
    rng: np.random.Generator, num_requests: int, k: int, power: float
) -> DecisionInputs:
    ones = np.ones(num_requests, dtype=np.float32)
    return DecisionInputs(
        confidence=(rng.beta(4.0, 1.5, (num_requests, k)) ** power).astype(np.float32),
        num_draft_tokens=np.full(num_requests, k, dtype=np.uint32),
        has_confidence=ones.astype(bool),
        samples=ones.astype(bool),
        weight=ones,
        context_tokens=np.full(num_requests, 1000, dtype=np.uint32),
        num_other_tokens=num_requests,
    )


def cases() -> Iterator[Case]:
    """Stairs of 8 rows. `contested` is a worst case: gains that float64 sums cannot see."""
    curves = {"small": (1.0, 0.02), "large": (20.0, 0.002), "flat": (5.0, 0.0)}
    for num_requests, k in SHAPES:
        sizes = range(8, num_requests * (k + 1) + 9, 8)
        for name, (base, slope) in (*curves.items(), ("contested", curves["flat"])):
            rng = np.random.default_rng(0)
            model = CostModel({size: [base + slope * size] for size in sizes}, sizes[-1])
            power = 12.0 if name == "contested" else 1.0
            steps = tuple(make_inputs(rng, num_requests, k, power) for _ in range(NUM_STEPS))
            yield Case(num_requests, k, name, model.compile(), steps)


@njit(nogil=True)
def time_decisions(
    rule: Any,
    steps: Any,
    num_turns: int,
    table: Any,
    prior: Any,
    workspace: Any,
    clock: Any,
    out: Any,
) -> Any:
    """Decide all steps in turn; out[i] becomes the ns of decision i. Returns the last budget."""
    budget = 0
    for turn in range(num_turns):
        for index in range(len(steps)):
            start = monotonic_ns(clock)
            budget = decide_step(rule, steps[index], table, prior, workspace).budget
            out[turn * len(steps) + index] = monotonic_ns(clock) - start
    return budget


class Compiled:
    """The compiled decision on one case."""

    def __init__(self, case: Case) -> None:
        self._steps: tuple[StepInput, ...] = tuple(step.as_step() for step in case.inputs)
        self._table = case.table
        self._prior = new_running_mean(case.max_draft_tokens)
        self._workspace = new_workspace(case.num_requests, case.max_draft_tokens)
        self._clock = np.zeros(2, dtype=np.int64)

    def run(self, num_turns: int) -> Floats:
        """us of each decision."""
        out = np.zeros(num_turns * NUM_STEPS, dtype=np.int64)
        rule, prior, workspace = THROUGHPUT.rule, self._prior, self._workspace
        time_decisions(
            rule, self._steps, num_turns, self._table, prior, workspace, self._clock, out
        )
        return out / 1e3

    def budgets(self) -> list[int]:
        """The decision on each step."""
        rule, prior, workspace = THROUGHPUT.rule, self._prior, self._workspace
        return [
            decide_step(rule, step, self._table, prior, workspace).budget for step in self._steps
        ]


def numpy_budget(confidence: npt.NDArray[np.float32], weight: float, price: Floats) -> int:
    """The same answer in five numpy calls, for scale: nothing repaired, weighted or checked."""
    gains = np.sort(np.cumprod(confidence, axis=1, dtype=np.float64).reshape(-1))[::-1]
    return int(np.argmax((weight + np.concatenate([[0.0], np.cumsum(gains)])) / price))


def time_numpy(case: Case, num_turns: int) -> Floats:
    num_drafts = case.num_requests * case.max_draft_tokens
    price = case.table.verify_ms[case.num_requests :][: num_drafts + 1]
    samples = []
    for _ in range(num_turns):
        for inputs in case.inputs:
            start = time.perf_counter_ns()
            numpy_budget(inputs.confidence, float(case.num_requests), price)
            samples.append((time.perf_counter_ns() - start) / 1e3)
    return np.array(samples)


@pytest.mark.bench
def test_decision(record_bench: Any) -> None:
    all_cases = list(cases())
    compiled = [Compiled(case) for case in all_cases]
    for case, runner in zip(all_cases, compiled, strict=True):
        expected = [decide(step, THROUGHPUT, case.table).budget for step in case.inputs]
        assert runner.budgets() == expected, case.label
        runner.run(2)
    rounds: list[list[Floats]] = [[] for _ in all_cases]
    plain: list[list[Floats]] = [[] for _ in all_cases]
    for _ in range(NUM_ROUNDS):
        for index, (case, runner) in enumerate(zip(all_cases, compiled, strict=True)):
            rounds[index].append(runner.run(NUM_TURNS))
            plain[index].append(time_numpy(case, 1))
    results = [
        summarise(case, runner.budgets(), np.array(ours), np.array(theirs))
        for case, runner, ours, theirs in zip(all_cases, compiled, rounds, plain, strict=True)
    ]
    Console(width=110).print(as_table(results))
    record_bench(
        "decision",
        results,
        policy="throughput",
        num_rounds=NUM_ROUNDS,
        decisions_per_round=NUM_STEPS * NUM_TURNS,
        best_round="the round with the lowest p50; rounds are interleaved over the cases",
    )


def summarise(case: Case, budgets: list[int], ours: Floats, theirs: Floats) -> dict[str, Any]:
    """Order statistics of one case; ours and theirs [rounds, decisions] in us."""
    medians = np.median(ours, axis=1)
    best = ours[int(np.argmin(medians))]
    bar_us = BARS_US[case.num_requests, case.max_draft_tokens]
    return {
        "num_requests": case.num_requests,
        "max_draft_tokens": case.max_draft_tokens,
        "table": case.table_name,
        "median_budget": int(np.median(budgets)),
        "best_round_p50_us": round(float(np.median(best)), 2),
        "best_round_p90_us": round(float(np.percentile(best, 90)), 2),
        "median_round_p50_us": round(float(np.median(medians)), 2),
        "numpy_best_round_p50_us": round(float(np.median(theirs, axis=1).min()), 2),
        "bar_us": None if case.table_name == "contested" else bar_us,
    }


def as_table(results: list[dict[str, Any]]) -> Table:
    names = {
        "num_requests": "R",
        "max_draft_tokens": "k",
        "table": "table",
        "median_budget": "budget",
        "best_round_p50_us": "p50 us",
        "best_round_p90_us": "p90 us",
        "median_round_p50_us": "median round",
        "numpy_best_round_p50_us": "numpy p50 us",
        "bar_us": "bar us",
    }
    table = Table(*names.values(), title="one budget decision, one thread")
    for result in results:
        table.add_row(*("" if result[key] is None else str(result[key]) for key in names))
    return table
