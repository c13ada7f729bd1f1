"""Steps replayed over recorded cost surfaces, with faults the learner is not told of.

A surface is what a real machine took: the stairs, the spread of repeated samples, and the measured
extra cost of context (interpolated between the points that were measured, bent as they are). The
learner's own form, a scale, a slope and ratios, appears nowhere here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from specsched_scheduler.decision.codes import NO_CAP, PolicyCode
from specsched_scheduler.decision.cost import ContextCost, CostModel, CostTable
from specsched_scheduler.decision.fast import decide_step
from specsched_scheduler.decision.step import PolicyRule, StepInput
from specsched_scheduler.decision.workspace import new_running_mean, new_workspace
from specsched_scheduler.learning.cost.corrector import CostCorrector
from specsched_scheduler.learning.cost.samples import CostSample

from tests.repository import ROOT

RAW = ROOT / "docs" / "benchmarks" / "raw"
RULE = PolicyRule(int(PolicyCode.THROUGHPUT), 0.0)
K = 7
QUANTILES = {"min": 0.0, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Surface:
    """verify_ms: size -> median. noise: size -> (quantile, factor) pairs. Context cost: extra ms at
    total context tokens, measured points. draft_ms: requests -> median of a full draft."""

    verify_ms: dict[int, float]
    noise: dict[int, tuple[Floats, Floats]]
    context_points: tuple[Floats, Floats]
    draft_ms: dict[int, float]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        return np.array(sorted(self.verify_ms))

    def size_of(self, rows: int) -> int:
        """The captured size that runs so many rows: the cheapest, as an executor knows them."""
        fit = self.sizes[np.searchsorted(self.sizes, min(rows, self.sizes[-1])) :]
        return int(min(fit, key=lambda size: self.verify_ms[int(size)]))

    def context_ms(self, tokens: float) -> float:
        """Interpolated; beyond the last point its last slope."""
        at, ms = self.context_points
        if tokens <= at[-1]:
            return float(np.interp(tokens, at, ms))
        return float(ms[-1] + (tokens - at[-1]) * (ms[-1] - ms[-2]) / (at[-1] - at[-2]))

    def noise_factor(self, size: int, rng: np.random.Generator) -> float:
        quantiles, factors = self.noise[size]
        return float(np.interp(rng.random(), quantiles, factors))


def h200_surface(decoder: str) -> Surface:
    """The published stairs of an H200, with the recorded spread of each size."""
    record = json.loads((RAW / "step_cost.nvidia-h200.json").read_text())
    results = [each for each in record["results"] if each["decoder"] == decoder]
    context_tokens = record["settings"]["context_tokens"]
    verify = {r["rows"]: r["ms"] for r in results if r["kind"] == "verify"}
    points = [
        (r["requests"] * context_tokens, r["ms"]["p50"]) for r in results if r["kind"] == "context"
    ]
    at = np.array([0.0] + [tokens for tokens, _ in points])
    ms = np.array([ms for _, ms in points])
    at_zero = ms[0] - at[1] * (ms[1] - ms[0]) / (at[2] - at[1])
    return Surface(
        verify_ms={rows: ms["p50"] for rows, ms in verify.items()},
        noise={
            rows: (
                np.array(list(QUANTILES.values())),
                np.array([ms[name] for name in QUANTILES]) / ms["p50"],
            )
            for rows, ms in verify.items()
        },
        context_points=(at, np.concatenate([[0.0], ms - at_zero])),
        draft_ms={
            r["requests"]: r["ms"]["p50"]
            for r in results
            if r["kind"] == "draft" and r["draft_tokens"] == K
        },
    )


def cpu_surface() -> Surface:
    """A loaded 2-core machine: every sample that was taken, spikes and all."""
    (path,) = RAW.glob("cpu_step_cost.*.json")
    record = json.loads(path.read_text())
    samples = {r["rows"]: np.sort(r["samples_ms"]) for r in record["results"]}
    slope = record["settings"]["ms_per_context_token"]
    # The staircase of a graph: an eager machine that pads to the sizes that were measured.
    medians = {rows: float(np.median(each)) for rows, each in samples.items()}
    return Surface(
        verify_ms=medians,
        noise={
            rows: (np.linspace(0.0, 1.0, len(each)), each / np.median(each))
            for rows, each in samples.items()
        },
        context_points=(np.array([0.0, 1e5, 2e5]), slope * np.array([0.0, 1e5, 2e5])),
        draft_ms={},
    )


@dataclass(frozen=True)
class Fault:
    """What is different from the profile. verify: (surface ms, ms of the least size) -> true ms.

    sample: (true ms, step) -> ms as reported. profiled_context, live_context: per request.
    knows_context: whether the profile has a slope for it.
    """

    name: str
    verify: Callable[[float, float], float] = lambda ms, first: ms
    sample: Callable[[float, int], float] = lambda ms, step: ms
    profiled_context: int = 1024
    live_context: int = 1024
    knows_context: bool = True


FAULTS = [
    Fault("nothing"),
    Fault("slope", verify=lambda ms, first: first + 2.0 * (ms - first)),
    Fault("dearer", verify=lambda ms, first: 1.3 * ms),
    Fault("spike", sample=lambda ms, step: 10.0 * ms if step == 400 else ms),
    Fault("cold", sample=lambda ms, step: 10.0 * ms if step < 20 else ms),
    Fault("context", profiled_context=8192, live_context=65536, knows_context=False),
]


class Replay:
    """One machine, one fault, one learner; steps of changing load with recorded confidences."""

    def __init__(
        self,
        surface: Surface,
        fault: Fault,
        confidence: Floats,
        *,
        max_requests: int,
        seed: int,
        volatility: float = 0.08,
    ) -> None:
        self.surface = surface
        self.fault = fault
        self.confidence = confidence
        self.max_requests = max_requests
        self.rng = np.random.default_rng(seed)
        self.workspace = new_workspace(max_requests, K)
        self.profile = self._profile()
        self.truth = self._true_model()
        self.load = max_requests / 8
        self.volatility = volatility

    def run(self, learner: CostCorrector | None, num_steps: int, begin: int) -> tuple[float, int]:
        """(mean loss in tokens/s against the true model's decisions from `begin` on, probes)."""
        losses = []
        table = self.profile.compile()
        num_probes = 0
        for step in range(num_steps):
            num_requests = self._next_load()
            rows = self.rng.integers(len(self.confidence), size=num_requests)
            confidence = self.confidence[rows]
            context = float(num_requests * self.fault.live_context)
            budget = self._decide(table, confidence, context)
            if learner is not None:
                probe = learner.probe_rows()
                if probe and num_requests < probe <= num_requests * (K + 1):
                    budget, num_probes = probe - num_requests, num_probes + 1
                self._report(learner, step, num_requests + budget, num_requests, context)
                if step % 16 == 15 and learner.update():
                    table = learner.model().compile()
            if step >= begin:
                ideal = self._decide(self._true_table(context), confidence, context)
                best = self._rate(confidence, context, ideal)
                losses.append(1.0 - self._rate(confidence, context, budget) / best)
        return float(np.mean(losses)), num_probes

    def _next_load(self) -> int:
        change = np.exp(self.volatility * self.rng.standard_normal())
        self.load = float(np.clip(self.load * change, 1, self.max_requests))
        return int(self.load)

    def _profile(self) -> CostModel:
        """As an executor profiles: a few samples a size with the context that it had, which is
        taken out again as far as its slope is known."""
        at, ms = self.surface.context_points
        slope = float((ms[1] - ms[0]) / (at[1] - at[0])) if self.fault.knows_context else 0.0
        samples = {}
        for size, stair_ms in self.surface.verify_ms.items():
            context = min(-(-size // 4), self.max_requests) * self.fault.profiled_context
            extra_ms = self.surface.context_ms(context) - slope * context
            factors = [self.surface.noise_factor(size, self.rng) for _ in range(9)]
            samples[size] = [stair_ms * factor + extra_ms for factor in factors]
        draft = {n: [ms] for n, ms in self.surface.draft_ms.items()}
        return CostModel(samples, max(samples), draft, ContextCost(slope))

    def _true_model(self) -> CostTable:
        first = min(self.surface.verify_ms.values())
        verify = {n: [self.fault.verify(ms, first)] for n, ms in self.surface.verify_ms.items()}
        draft = {n: [ms] for n, ms in self.surface.draft_ms.items()}
        return CostModel(verify, max(verify), draft).compile()

    def _true_table(self, context: float) -> CostTable:
        per_token = self.surface.context_ms(context) / context
        return self.truth._replace(context_ms_per_token=per_token, profiled_context=0.0)

    def _decide(self, table: CostTable, confidence: Floats, context: float) -> int:
        num = len(confidence)
        step = StepInput(
            confidence,
            np.full(num, K, dtype=np.int64),
            np.ones(num, dtype=np.bool_),
            np.ones(num, dtype=np.bool_),
            np.ones(num),
            np.full(num, int(context / num), dtype=np.int64),
            num,
            num,
            0,
            NO_CAP,
        )
        return int(decide_step(RULE, step, table, new_running_mean(K), self.workspace).budget)

    def _rate(self, confidence: Floats, context: float, budget: int) -> float:
        """Expected tokens per true ms, without noise."""
        survival = np.sort(np.cumprod(confidence, axis=1).reshape(-1))[::-1]
        tokens = len(confidence) + float(survival[:budget].sum())
        table = self._true_table(context)
        rows = len(confidence) + budget
        verify = table.verify_ms[min(rows, len(table.verify_ms) - 1)]
        draft = table.draft_ms[min(len(confidence), len(table.draft_ms) - 1)]
        return tokens / float(verify + draft + self.surface.context_ms(context))

    def _report(
        self, learner: CostCorrector, step: int, rows: int, num_requests: int, context: float
    ) -> None:
        size = self.surface.size_of(rows)
        first = min(self.surface.verify_ms.values())
        true_ms = self.fault.verify(self.surface.verify_ms[size], first)
        true_ms = true_ms * self.surface.noise_factor(size, self.rng)
        true_ms += self.surface.context_ms(context)
        draft = self.truth.draft_ms[min(num_requests, len(self.truth.draft_ms) - 1)]
        sample = CostSample(
            num_tokens=size,
            num_sampling=num_requests,
            context_tokens=int(context),
            verify_ms=self.fault.sample(true_ms, step),
            draft_ms=float(draft),
            draft_tokens=K if draft else 0,
        )
        learner.observe([sample])
