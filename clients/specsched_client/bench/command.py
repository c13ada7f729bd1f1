"""`specsched bench`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from specsched_protocol.exit_codes import ExitCode

from specsched_client.cli._options import (
    DEFAULT_TARGET,
    JsonOption,
    RunDirOption,
    SchedulerOption,
    TargetOption,
)

from .compare.command import compare
from .progress import show_progress
from .sweep.command import sweep
from .termination import sigterm_as_ctrl_c

__all__ = ["bench"]

bench = typer.Typer(help="Measure a running executor under load.", no_args_is_help=True)
bench.command()(compare)
bench.command()(sweep)


@bench.command()
def serve(
    *,
    prompts: Annotated[
        Path,
        typer.Option(
            help='File of prompts, a JSON object a line: {"turns": [TEXT, ...]}, of which the first'
            ' goes through the chat template, or {"prompt": TEXT}.'
        ),
    ],
    target: TargetOption = DEFAULT_TARGET,
    concurrency: Annotated[
        list[int] | None,
        typer.Option(help="Closed loop of so many users; repeat for several loads. Default: 1."),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Open loop of so many requests a second, Poisson; may be repeated."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to measure; repeat to compare them interleaved in this session. The first"
            " is the baseline. None: the policy in force."
        ),
    ] = None,
    baseline_target: Annotated[
        str | None,
        typer.Option(
            help="A second executor as the baseline, e.g. one that was started with --drafter none."
        ),
    ] = None,
    num_requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests of a round. Default: one per prompt, or per user."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of each variant and load.")] = 3,
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0, help="Requests before the rounds of a variant and load. Default: one per user."
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens of a request.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Request i samples with SEED + i: repeatable answers, but above temperature 0 a"
            " drafter that draws has fewer drafts accepted. Arrivals draw from SEED, else from 0.",
        ),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Make every answer max-tokens long.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds that a request may take.")] = None,
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    output: Annotated[
        Path | None, typer.Option(help="Also write the JSON, with every request, to this file.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Send prompts to a running executor and report how fast and how well it answers.

    Policies given are compared fairly: rounds alternate in one session of the server, and the
    ratios, repeat by repeat, come with a 95 % confidence interval.
    """
    from .plan import BenchPlan, run_plan

    plan = BenchPlan.of(
        prompts=prompts,
        target=target,
        concurrency=concurrency or (),
        rate=rate or (),
        policies=policy or (),
        baseline_target=baseline_target,
        num_requests=num_requests,
        num_repeats=repeats,
        num_warm_up=warm_up,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        ignore_eos=ignore_eos,
        timeout_s=timeout,
        run_dir=run_dir,
        scheduler=scheduler,
    )
    with show_progress() as progress, sigterm_as_ctrl_c():
        report = asyncio.run(run_plan(plan, progress, command=["specsched", *sys.argv[1:]]))
    if output is not None:
        output.write_text(report.to_json() + "\n", encoding="utf-8")
    if json:
        typer.echo(report.to_json())
    else:
        from specsched_protocol.console import to_stdout

        from .table import load_table

        console = to_stdout()
        for result in report.results:
            console.print(load_table(result))
    if report.num_failed_requests:
        typer.echo(f"error: {report.num_failed_requests} requests failed", err=True)
        raise typer.Exit(ExitCode.FAILED)
