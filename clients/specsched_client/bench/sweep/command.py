"""`specsched bench sweep`."""

from __future__ import annotations

import asyncio
import json as json_module
import sys
from pathlib import Path
from typing import Annotated

import typer

from specsched_client._errors import MissingDependencyError
from specsched_client.bench.progress import show_progress
from specsched_client.bench.termination import sigterm_as_ctrl_c
from specsched_client.cli._options import (
    DEFAULT_TARGET,
    JsonOption,
    RunDirOption,
    SchedulerOption,
    TargetOption,
)

from .report import SweepReport

__all__ = ["sweep"]

_CONCURRENCY = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def sweep(
    *,
    prompts: Annotated[
        Path,
        typer.Option(help="File of prompts, as of `bench serve`. The more, the longer a round."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            help="Folder for sweep.json, figures and what is finished (state.jsonl). The same"
            " command with the same folder goes on where it was interrupted."
        ),
    ],
    target: TargetOption = DEFAULT_TARGET,
    baseline_target: Annotated[
        str | None,
        typer.Option(
            help="A second executor, started with --drafter none: a second reference without"
            " speculation beside the policy off."
        ),
    ] = None,
    concurrency: Annotated[
        list[int], typer.Option(help="Users at once, a closed loop; repeat for several.")
    ] = _CONCURRENCY,
    fixed: Annotated[
        list[int] | None,
        typer.Option(
            help="Fixed number of drafts to measure; repeat for several. Default: from 1 to as many"
            " as the executor drafts."
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="The policy to prove.")] = "throughput",
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to compare it with instead of no speculation and fixed numbers; repeat for"
            " several."
        ),
    ] = None,
    half_width: Annotated[
        float,
        typer.Option(
            help="Repeat until the 95 % interval of every ratio reaches at most this share of it"
            " to either side."
        ),
    ] = 0.015,
    min_repeats: Annotated[
        int, typer.Option(help="Rounds of each setting and load, at least; a multiple of 4.")
    ] = 8,
    max_repeats: Annotated[
        int, typer.Option(help="At most, precise or not; a multiple of 4.")
    ] = 40,
    every_setting: Annotated[
        bool,
        typer.Option(
            "--every-setting",
            help="Measure every setting in every repeat. Default: no longer those that after two"
            " repeats or more are clearly slower than the fastest static one.",
        ),
    ] = False,
    num_requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests of a round. Default: one per prompt, or four per user."),
    ] = None,
    round_seconds: Annotated[
        float | None,
        typer.Option(
            help="Steady rounds: tokens count for so long while all users are busy, and the round"
            " ends there. Each repeat then takes the next prompts. Default: whole rounds."
        ),
    ] = None,
    settle_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="What does not count at the start of a steady round, once every user has a token."
            " Default: 0.3.",
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(help="Begin no repeat after so long and report what there is."),
    ] = None,
    clients: Annotated[
        int,
        typer.Option(min=1, help="Processes that send the requests of steady rounds."),
    ] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens of a request.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Request i samples with SEED + i: repeatable answers, but above temperature 0 a"
            " drafter that draws has fewer drafts accepted.",
        ),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Make every answer max-tokens long.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds that a request may take.")] = None,
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    json: JsonOption = False,
) -> None:
    """Measure no speculation, fixed draft lengths and a policy, until their ratios are precise.

    All settings alternate in one session of the server. The best static setting is chosen on one
    half of the repeats and compared on the other. Ctrl-C and SIGTERM keep what is finished
    and put the server's policy back.
    """
    from .plan import SweepPlan
    from .run import run_sweep

    plan = SweepPlan.of(
        prompts=prompts,
        target=target,
        baseline_target=baseline_target,
        concurrency=concurrency,
        fixed=fixed or (),
        against=against or (),
        policy=policy,
        half_width=half_width,
        min_repeats=min_repeats,
        max_repeats=max_repeats,
        every_setting=every_setting,
        num_requests=num_requests,
        round_seconds=round_seconds,
        settle_seconds=settle_seconds,
        num_processes=clients,
        max_seconds=max_seconds,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        ignore_eos=ignore_eos,
        timeout_s=timeout,
        run_dir=run_dir,
        scheduler=scheduler,
    )
    command = ["specsched", *sys.argv[1:]]
    try:
        with show_progress() as progress, sigterm_as_ctrl_c():
            report = asyncio.run(run_sweep(plan, output / "state.jsonl", progress, command=command))
    except KeyboardInterrupt:
        typer.echo(f"finished repeats are kept in {output}; the same command goes on", err=True)
        raise
    _show(report, output, as_json=json)


def _show(report: SweepReport, output: Path, *, as_json: bool) -> None:
    result = output / "sweep.json"
    result.write_text(report.to_json() + "\n", encoding="utf-8")
    remarks = [*report.remarks(), *_draw(result)]
    if as_json:
        typer.echo(report.to_json())
    else:
        from specsched_protocol.console import to_stdout

        console = to_stdout()
        for table in report.tables():
            console.print(table)
    for remark in remarks:
        typer.echo(f"note: {remark}", err=True)


def _draw(result: Path) -> list[str]:
    """Draw the figures beside a result; what there is to say where that cannot be done."""
    from specsched_client.bench.compare.result_file import read_results
    from specsched_client.bench.figures import draw_figures

    from .figure import draw_verdicts

    try:
        draw_figures(read_results([result]), result.parent)
        draw_verdicts(json_module.loads(result.read_text(encoding="utf-8")), result.parent)
    except MissingDependencyError as error:
        later = f"`specsched bench compare {result} --figures {result.parent}` draws them later"
        return [f"no figures: {error}; {later}"]
    return []
