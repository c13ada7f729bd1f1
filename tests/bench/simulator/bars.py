"""What each learned feature is worth in the simulator, as numbers that can be held to a bar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.bench.simulator.machine import Machine, load_machine
from tests.bench.simulator.recordings import Recordings
from tests.bench.simulator.scheduler import Scheduler
from tests.bench.simulator.simulation import Result, simulate
from tests.bench.simulator.synthetic import load_drafts
from tests.bench.simulator.workload import Workload

__all__ = [
    "FIXED",
    "STATEMENT",
    "Regime",
    "Spread",
    "best_fixed",
    "kept_bounds",
    "paces",
    "runs",
    "speeds",
    "thin_to",
]

FIXED = ("off", *(f"fixed({k})" for k in range(1, 8)))
STATEMENT = "A simulation: an instrument for choosing, not evidence about the product."
SEED = 20_000
MIN_REQUESTS = 32
CLEARLY_SLOWER = 0.97

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Regime:
    """What a bench varies beside the concurrency. drafter: of `load_machine`; kind: of drafts."""

    drafter: str
    kind: str
    median_output_tokens: int = 192

    @property
    def machine(self) -> Machine:
        """Eight billion parameters on an H200."""
        return load_machine("8b", self.drafter)

    def workload(self, concurrency: int) -> Workload:
        """A closed loop."""
        output = self.median_output_tokens
        return Workload(load_drafts(self.kind), concurrency, median_output_tokens=output)


@dataclass(frozen=True)
class Spread:
    """Mean over paired seeds, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, samples: Floats) -> Spread:
        """samples: one for each seed."""
        error = samples.std(ddof=1) / np.sqrt(len(samples)) if len(samples) > 1 else np.nan
        return cls(float(samples.mean()), float(error))

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.error:.4f}"


def runs(
    policy: str,
    workload: Workload,
    machine: Machine,
    *,
    rounds: int,
    num_seeds: int,
    first_seed: int = 0,
    scheduler_type: type[Scheduler] = Scheduler,
) -> list[Result]:
    """The same seeds for every policy: the same requests, noise and profile.

    rounds: requests, one after the other, in each place; at least 32 in all.
    """
    num_requests = max(rounds * workload.concurrency, MIN_REQUESTS)
    return [
        simulate(
            policy,
            workload,
            machine,
            num_requests=num_requests,
            seed=SEED + index,
            scheduler_type=scheduler_type,
        )
        for index in range(first_seed, num_seeds)
    ]


def speeds(results: list[Result]) -> Floats:
    """Tokens per second of each seed."""
    return np.array([each.tokens_per_second for each in results])


def best_fixed(
    workload: Workload, machine: Machine, *, rounds: int, num_seeds: int
) -> tuple[str, list[Result]]:
    """The fixed draft length that is fastest on the mean of all seeds, in hindsight.

    Those that are clearly slower in the first one are left out of the others.
    """
    once = {"rounds": rounds, "num_seeds": 1}
    more = {"rounds": rounds, "num_seeds": num_seeds, "first_seed": 1}
    first = {name: runs(name, workload, machine, **once) for name in FIXED}
    fastest = max(speeds(results)[0] for results in first.values())
    found = {
        name: results + runs(name, workload, machine, **more)
        for name, results in first.items()
        if speeds(results)[0] >= CLEARLY_SLOWER * fastest
    }
    best = max(found, key=lambda name: float(speeds(found[name]).mean()))
    return best, found[best]


def paces(results: list[Result], quantile: float) -> Floats:
    """Quantile over requests of the ms per token, for each seed."""
    return np.array([np.quantile(each.pace_ms, quantile) for each in results])


def kept_bounds(results: list[Result], bound_ms: float) -> Floats:
    """Share of the steps within a bound, of those that any budget could keep within it."""
    shares = []
    for each in results:
        step_ms, least_ms = np.array(each.step_ms), np.array(each.least_ms)
        could = least_ms <= bound_ms
        shares.append(float((step_ms[could] <= bound_ms).mean()))
    return np.array(shares)


def thin_to(recordings: Recordings, accepted_per_step: float, seed: int = 1) -> Recordings:
    """A worse drafter, of so many accepted tokens per full draft, whose confidences know it."""
    low, high = 0.0, 0.9999
    for _ in range(30):
        share = (low + high) / 2
        mean = float(recordings.thinned(share, seed).accepted.mean())
        low, high = (share, high) if mean < accepted_per_step else (low, share)
    return recordings.thinned(low, seed)
