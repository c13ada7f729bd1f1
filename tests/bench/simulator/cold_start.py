"""What is lost while nothing is known: short phases of other batch sizes, one after the other.

`python -m tests.bench.simulator.cold_start` prints, by phase, tokens per second relative to the
best of no drafts and fixed lengths, chosen in hindsight for that phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

from tests.bench.simulator.bars import FIXED, SEED, Spread
from tests.bench.simulator.machine import Machine, cpu_machine, load_machine
from tests.bench.simulator.recordings import Recordings, load_recordings
from tests.bench.simulator.scheduler import Scheduler
from tests.bench.simulator.simulation import Executor, Result
from tests.bench.simulator.workload import Workload

__all__ = ["PHASES", "against_best_fixed", "phase_speeds"]

PHASES = (1, 16, 4, 256)
NUM_STEPS = 50


def phase_speeds(
    policy: str,
    recordings: Recordings,
    machine: Machine,
    seed: int,
    *,
    phases: Sequence[int] = PHASES,
    num_steps: int = NUM_STEPS,
) -> npt.NDArray[np.float64]:
    """Tokens per second of each phase of so many steps; one scheduler goes through all of them."""
    largest = Workload(recordings, max(phases))
    scheduler = Scheduler(policy, largest, machine, seed)
    noise = machine.noise_factors(seed)
    first, speeds = 1, []
    for index, num_requests in enumerate(phases):
        workload = Workload(recordings, num_requests, None, 64, 96)
        executor = Executor(policy, workload, machine, seed + 100 * index, scheduler)
        result = Result()
        for step_id in range(first, first + num_steps):
            executor.step(step_id, next(noise), result)
        first += num_steps
        speeds.append(result.tokens_per_second)
    return np.array(speeds)


def against_best_fixed(
    recordings: Recordings,
    machine: Machine,
    *,
    policy: str = "throughput",
    phases: Sequence[int] = PHASES,
    num_seeds: int = 4,
) -> npt.NDArray[np.float64]:
    """float64 [seeds, phases]: the policy's speed relative to the best fixed length's."""

    def speeds(name: str) -> npt.NDArray[np.float64]:
        runs = [
            phase_speeds(name, recordings, machine, SEED + seed, phases=phases)
            for seed in range(num_seeds)
        ]
        return np.array(runs)

    fixed = np.array([speeds(name) for name in FIXED])
    best = fixed.mean(axis=1).argmax(axis=0)
    found: npt.NDArray[np.float64] = speeds(policy) / fixed[best, :, np.arange(len(phases))].T
    return found


def compare(
    machine: Annotated[list[str], typer.Option(help="cpu, chain, block or lookup.")] = [  # noqa: B006
        "cpu",
        "block",
        "lookup",
    ],
    kind: Annotated[list[str], typer.Option(help="sampled or greedy.")] = ["sampled", "greedy"],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=2, help="Paired runs.")] = 4,
) -> None:
    """Print the first steps' speed at each batch size, mean and standard error."""
    table = Table("machine", "drafts", *(f"{num} requests" for num in PHASES))
    for name in machine:
        costs = cpu_machine() if name == "cpu" else load_machine("8b", name)
        for drafts in kind:
            found = against_best_fixed(load_recordings(drafts), costs, num_seeds=seeds)
            table.add_row(name, drafts, *(str(Spread.of(phase)) for phase in found.T))
    console = Console()
    console.print("A simulation: an instrument for choosing, not evidence about the product.")
    console.print(table)


if __name__ == "__main__":
    typer.run(compare)
