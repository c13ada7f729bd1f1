"""What steps cost on the simulated machine, and what a scheduler was told they cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from specsched_executor.engine.filling import cheapest_sizes
from specsched_scheduler.decision import ContextCost, CostModel, CostTable
from specsched_scheduler.decision.reference import draft_ms, verify_ms

__all__ = ["Machine", "cpu_machine", "load_machine"]

RECORD = Path(__file__).parents[3] / "docs/benchmarks/raw/step_cost.nvidia-h200.json"
CONTEXT_TOKENS = 1024
PROFILE_SAMPLES = 9


@dataclass(frozen=True)
class Machine:
    """truth: the measured costs. noise: spread of a step's time (log-normal sigma); in one of
    `spike_every` steps it takes three times as long."""

    truth: CostTable
    model: CostModel
    noise: float = 0.015
    spike_every: int = 400
    max_batched_tokens: int = 2048

    def step_ms(self, num_rows: int, num_sampling: int, context_tokens: int, drafts: int) -> float:
        """Time of a step, drafting included, without noise."""
        rows = verify_ms(self.truth, np.array([num_rows]))[0]
        context = self.truth.context_ms_per_token * context_tokens
        return float(rows + context + self.draft_ms(num_sampling, drafts))

    def draft_ms(self, num_sampling: int, drafts: int) -> float:
        """The part of that which drafting takes."""
        return float(draft_ms(self.truth, num_sampling, drafts))

    @cached_property
    def sizes_in_use(self) -> tuple[int, ...]:
        """Captured sizes that steps run in."""
        captured = [size for size in sorted(self.model.verify) if size <= self.model.capture_limit]
        return cheapest_sizes(captured, {size: self.model.verify[size][0] for size in captured})

    def noise_factors(self, seed: int) -> Iterator[float]:
        """By what the time of each step is multiplied, without end."""
        rng = np.random.default_rng([seed, 1])
        while True:
            factor = float(np.exp(self.noise * rng.standard_normal()))
            yield 3.0 * factor if rng.random() < 1.0 / self.spike_every else factor

    def misjudged(self, factor: float) -> Machine:
        """The same machine, whose profile says that rows take `factor` times as long as they do."""
        model = self.model
        (least,) = model.verify[min(model.verify)]
        verify = {size: [least + factor * (ms - least)] for size, (ms,) in model.verify.items()}
        return replace(self, model=replace(model, verify=verify))

    def profiled(self, seed: int) -> CostModel:
        """What an executor that profiled this machine once, with its noise, tells a scheduler."""
        rng = np.random.default_rng([seed, 2])

        def samples(ms: float) -> list[float]:
            return (ms * np.exp(self.noise * rng.standard_normal(PROFILE_SAMPLES))).tolist()

        def noisy(costs: Any) -> dict[int, list[float]]:
            return {size: samples(median) for size, (median,) in costs.items()}

        model = self.model
        return CostModel(
            noisy(model.verify),
            model.capture_limit,
            noisy(model.draft),
            model.context,
            {length: noisy(costs) for length, costs in model.short_drafts.items()},
        )


@cache
def load_machine(decoder: str = "8b", drafter: str = "block") -> Machine:
    """A decoder of the record: its stairs as measured, less what reading the context took.

    drafter: "chain", three layers of the target's shape run once per draft token, as measured;
    "block", the same layers run once over all positions, estimated by their share of a verification
    of as many rows; "lookup", free.
    """
    results = [r for r in json.loads(RECORD.read_text())["results"] if r["decoder"] == decoder]

    def median(**where: Any) -> list[tuple[dict[str, Any], float]]:
        found = [r for r in results if all(r.get(key) == value for key, value in where.items())]
        return [(r, r["ms"]["p50"]) for r in found]

    few, *_, many = median(kind="context")
    slope = (many[1] - few[1]) / ((many[0]["requests"] - few[0]["requests"]) * CONTEXT_TOKENS)
    verify = {
        r["rows"]: [max(ms - slope * r["requests"] * CONTEXT_TOKENS, ms / 10)]
        for r, ms in median(kind="verify")
    }
    drafts: dict[int, dict[int, list[float]]] = {}
    for r, ms in median(kind="draft") if drafter == "chain" else ():
        drafts.setdefault(r["draft_tokens"], {})[r["requests"]] = [ms]
    if drafter == "block":
        share = _draft_layers_share(decoder)
        drafts = {
            length: {
                rows // (length + 1): [share * ms[0]]
                for rows, ms in verify.items()
                if rows >= length + 1
            }
            for length in (1, 3, 7)
        }
    full = drafts.pop(max(drafts)) if drafts else {}
    model = CostModel(verify, max(verify), full, ContextCost(slope), drafts)
    return Machine(model.compile(), model)


@cache
def cpu_machine() -> Machine:
    """About what SmolLM2-135M and its shipped drafter take on two cores, where rows and drafts are
    dear: at 16 requests full drafts take nearly as long as a step without."""
    rows = {1: 44, 4: 46, 8: 50, 16: 56, 32: 63, 48: 78, 64: 99, 96: 120, 128: 135, 256: 208}
    full = {1: 19.0, 4: 24.0, 16: 48.0}
    drafts = {
        length: {num: [share * ms] for num, ms in full.items()}
        for length, share in ((1, 0.5), (2, 0.7), (4, 0.85))
    }
    model = CostModel(
        {num: [float(ms)] for num, ms in (rows | {512: 340}).items()},
        0,
        {num: [ms] for num, ms in full.items()},
        ContextCost(0.0064),
        drafts,
    )
    return Machine(model.compile(), model, noise=0.05, max_batched_tokens=512)


def _draft_layers_share(decoder: str) -> float:
    settings = json.loads(RECORD.read_text())["settings"]
    (layers,) = [d["num_layers"] for d in settings["decoders"] if d["name"] == decoder]
    return float(settings["num_draft_layers"] / layers)
