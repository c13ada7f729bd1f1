"""Throughput of policies against the best fixed draft length, by concurrency, in simulated time."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from tests.bench.simulator.machine import load_machine
from tests.bench.simulator.recordings import load_recordings
from tests.bench.simulator.simulation import Variant, simulate
from tests.bench.simulator.workload import Workload

FIXED = ("off", *(f"fixed({k})" for k in range(1, 8)))
SEED = 20_000


def compare(
    policy: Annotated[list[str], typer.Option(help="Compared with every fixed length.")] = [  # noqa: B006
        "throughput"
    ],
    concurrency: Annotated[list[int], typer.Option()] = [1, 4, 16, 64, 256],  # noqa: B006
    decoder: Annotated[str, typer.Option(help="Of the recorded step costs.")] = "8b",
    drafter: Annotated[str, typer.Option(help="chain, block or lookup (free).")] = "block",
    kind: Annotated[str, typer.Option(help="sampled or greedy.")] = "sampled",
    steps: Annotated[int, typer.Option(min=100)] = 1000,
    seeds: Annotated[int, typer.Option(min=2, help="Paired runs.")] = 4,
) -> None:
    """Print tokens/s relative to the best of no drafts and fixed 1..7, mean and standard error."""
    machine, recordings = load_machine(decoder, drafter), load_recordings(kind)
    table = Table("concurrency", "best fixed", *policy)
    for num in concurrency:
        workload = Workload(recordings, num)

        def speeds(name: str, workload: Workload = workload) -> np.ndarray:
            runs = (
                simulate(Variant(name), workload, machine, num_steps=steps, seed=SEED + i)
                for i in range(seeds)
            )
            return np.array([run.tokens_per_second for run in runs])

        fixed = {name: speeds(name) for name in FIXED}
        best = max(fixed, key=lambda name: float(fixed[name].mean()))
        ratios = [speeds(name) / fixed[best] for name in policy]
        errors = [ratio.std(ddof=1) / np.sqrt(seeds) for ratio in ratios]
        cells = [f"{r.mean():.4f} ± {e:.4f}" for r, e in zip(ratios, errors, strict=True)]
        table.add_row(str(num), best, *cells)
    console = Console()
    console.print("A simulation: an instrument for choosing, not evidence about the product.")
    console.print(table)


if __name__ == "__main__":
    typer.run(compare)
