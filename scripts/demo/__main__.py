"""Start both processes, ask all prompts under each policy twice, compare what was counted."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from specsched_client import AsyncClient, AsyncSchedulerClient, SpecschedError

from scripts.demo.conclusion import conclusion
from scripts.demo.processes import DemoError, end_on_signals, start_both, supervised
from scripts.demo.rounds import Clients, run_round, warm_up, watching
from scripts.demo.state import DemoState
from scripts.demo.summary import (
    MIN_ON_PLAN_SHARE,
    Round,
    on_plan_share,
    summary_table,
    summed,
)
from scripts.demo.view import open_view

DISTURBED = (
    "While the executor measured what a step costs other programs used the cores. Decisions went by"
    " costs that are too high, and tokens/s differ by chance: run it again on a calm machine."
)
POLICIES = ["throughput", "fixed(k=7)", "off"]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a demo measured. is_cost_disturbed: as DemoProcesses tells it."""

    rounds: list[Round]
    is_cost_disturbed: bool


async def demo(
    console: Console, policies: list[str], max_tokens: int, logs: Path, is_told: threading.Event
) -> Shown:
    """Run each policy twice, the second time in reverse order, so that no place in it is better.

    They run against processes of their own, which were warmed up before and end with it.
    is_told: set when a signal ended it.
    """
    end_on_signals(is_told)
    state = DemoState()
    async with (
        open_view(console, state) as view,
        start_both(logs, state) as processes,
        AsyncClient(processes.executor_target) as executor,
        AsyncSchedulerClient(processes.scheduler_target) as scheduler,
        watching(scheduler, state),
    ):
        clients = Clients(executor, scheduler)
        for policy in policies:
            work = asyncio.create_task(warm_up(clients, policy, state))
            await supervised(work, processes.by_log)
        rounds = []
        for policy, told in [(p, view) for p in policies] + [(p, None) for p in policies[::-1]]:
            asked = asyncio.create_task(run_round(clients, policy, max_tokens, state, told))
            rounds.append(await supervised(asked, processes.by_log))
        return Shown(rounds, processes.is_cost_disturbed)


def verdict(console: Console, shown: Shown) -> int:
    """Print the table and what follows from it; return the exit status."""
    rounds = shown.rounds
    by_policy = summed(rounds)
    console.print(summary_table(by_policy))
    same_texts = len({one.texts for one in rounds}) == 1
    share = on_plan_share(rounds)
    latency_us = rounds[-1].plan_us_p50
    console.print(f"texts the same under every policy: {'yes' if same_texts else 'NO'}")
    console.print(f"from a step's request to its plan: {latency_us:.0f} us, median of all")
    console.print(
        f"steps with drafts that had their plan on time: {share:.2%}"
        f" ({'at least' if share >= MIN_ON_PLAN_SHARE else 'BELOW'} {MIN_ON_PLAN_SHARE:.0%})"
    )
    sentences = [*conclusion(by_policy), *([DISTURBED] if shown.is_cost_disturbed else [])]
    for sentence in sentences:
        console.print(sentence, soft_wrap=True, markup=False, highlight=False)
    return 0 if same_texts else 1


def main(
    policy: Annotated[
        list[str] | None, typer.Option(help="A policy to compare; repeat it for more.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    plain: Annotated[bool, typer.Option(help="Print lines even on a terminal.")] = False,
    logs: Annotated[
        Path | None, typer.Option(help="Keep the run directory with both logs here.")
    ] = None,
) -> None:
    """Serve SmolLM2-135M-Instruct through the sidecar and compare policies on the same prompts."""
    console = Console(force_terminal=False if plain else None)
    is_told = threading.Event()
    with tempfile.TemporaryDirectory(prefix="specsched-demo-") as scratch:
        try:
            shown = asyncio.run(
                demo(console, policy or POLICIES, max_tokens, logs or Path(scratch), is_told)
            )
        except (DemoError, SpecschedError) as error:
            if is_told.is_set():
                raise typer.Exit(130) from None
            console.print(f"the demo failed: {error}", style="bold red", markup=False)
            raise typer.Exit(1) from error
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise typer.Exit(130) from None
    raise typer.Exit(verdict(console, shown))


if __name__ == "__main__":
    typer.run(main)
