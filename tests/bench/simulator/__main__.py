"""Policies against the best fixed draft length, by concurrency, in simulated time."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.bench.simulator.bars import STATEMENT, Spread, best_fixed, paces, runs, speeds
from tests.bench.simulator.machine import load_machine
from tests.bench.simulator.synthetic import SPREADS, load_drafts
from tests.bench.simulator.workload import Workload

KINDS = ("sampled", "greedy", "mixed", "copy", "greedy copy", *SPREADS)


def compare(
    policy: Annotated[list[str], typer.Option(help="Compared with every fixed length.")] = [  # noqa: B006
        "throughput"
    ],
    concurrency: Annotated[list[int], typer.Option()] = [1, 4, 16, 64, 256],  # noqa: B006
    decoder: Annotated[str, typer.Option(help="Of the recorded step costs.")] = "8b",
    drafter: Annotated[str, typer.Option(help="chain, block or lookup (free).")] = "block",
    kind: Annotated[str, typer.Option(help=f"{', '.join(KINDS)}.")] = "sampled",
    answer: Annotated[int, typer.Option(min=16, help="Median tokens of an answer.")] = 192,
    rounds: Annotated[int, typer.Option(min=2, help="Requests in each place.")] = 8,
    seeds: Annotated[int, typer.Option(min=2, help="Paired runs.")] = 4,
) -> None:
    """Print tokens/s and time per token of requests (median, p95), relative to the best of no
    drafts and fixed 1..7: mean and standard error."""
    machine, drafts = load_machine(decoder, drafter), load_drafts(kind)
    table = Table("concurrency", "best fixed", "policy", "tokens/s", "median", "p95")
    for num in concurrency:
        workload = Workload(drafts, num, median_output_tokens=answer)
        best, fixed = best_fixed(workload, machine, rounds=rounds, num_seeds=seeds)
        for name in policy:
            found = runs(name, workload, machine, rounds=rounds, num_seeds=seeds)
            ratios = [speeds(found) / speeds(fixed)]
            ratios += [paces(found, each) / paces(fixed, each) for each in (0.5, 0.95)]
            table.add_row(str(num), best, name, *(str(Spread.of(each)) for each in ratios))
    console = Console()
    console.print(STATEMENT)
    console.print(table)


if __name__ == "__main__":
    typer.run(compare)
