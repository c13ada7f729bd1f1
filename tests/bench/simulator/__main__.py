"""Throughput of policies against the best fixed draft length, by concurrency, in simulated time."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.bench.simulator.bars import Spread, best_fixed, runs, speeds
from tests.bench.simulator.machine import load_machine
from tests.bench.simulator.recordings import load_recordings
from tests.bench.simulator.workload import Workload


def compare(
    policy: Annotated[list[str], typer.Option(help="Compared with every fixed length.")] = [  # noqa: B006
        "throughput"
    ],
    concurrency: Annotated[list[int], typer.Option()] = [1, 4, 16, 64, 256],  # noqa: B006
    decoder: Annotated[str, typer.Option(help="Of the recorded step costs.")] = "8b",
    drafter: Annotated[str, typer.Option(help="chain, block or lookup (free).")] = "block",
    kind: Annotated[
        str, typer.Option(help="sampled, greedy, mixed, copy or greedy copy.")
    ] = "sampled",
    rounds: Annotated[int, typer.Option(min=2, help="Requests in each place.")] = 8,
    seeds: Annotated[int, typer.Option(min=2, help="Paired runs.")] = 4,
) -> None:
    """Print tokens/s relative to the best of no drafts and fixed 1..7, mean and standard error."""
    machine, recordings = load_machine(decoder, drafter), load_recordings(kind)
    table = Table("concurrency", "best fixed", *policy)
    for num in concurrency:
        workload = Workload(recordings, num)
        best, fixed = best_fixed(workload, machine, rounds=rounds, num_seeds=seeds)
        found = (runs(name, workload, machine, rounds=rounds, num_seeds=seeds) for name in policy)
        cells = [str(Spread.of(speeds(each) / speeds(fixed))) for each in found]
        table.add_row(str(num), best, *cells)
    console = Console()
    console.print("A simulation: an instrument for choosing, not evidence about the product.")
    console.print(table)


if __name__ == "__main__":
    typer.run(compare)
