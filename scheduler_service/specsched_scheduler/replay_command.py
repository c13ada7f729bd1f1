"""`specsched replay`: another policy on recorded steps."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["replay"]

_BAD_INPUT = 2
_MISSING_PACKAGE = 5


def replay(
    trace: Annotated[Path, typer.Argument(help="A trace file, or the folder of --trace-dir.")],
    policy: Annotated[str, typer.Option(help='Policy to try, e.g. "threshold(0.4)".')],
    steps: Annotated[bool, typer.Option("--steps", help="Print every step, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture to this file.")] = None,
) -> None:
    """Decide recorded steps by another policy and compare: tokens per second and regret."""
    from specsched_scheduler.learning.errors import TraceError
    from specsched_scheduler.policies import PolicyError, build_policy

    try:
        from specsched_scheduler.trace.reader import read_trace_files
        from specsched_scheduler.trace.replay import ReplayTotals
        from specsched_scheduler.trace.replay import replay as replay_steps
    except ImportError as error:
        _fail(f"{error}: pip install 'specsched[trace]'", _MISSING_PACKAGE)
    totals, replayed = ReplayTotals(), []
    try:
        built = build_policy(policy)
        files = list(read_trace_files(trace))
        for step in replay_steps(files, built):
            totals.add(step)
            replayed.append(step)
            if steps and not json:
                typer.echo(
                    f"step {step.step_id}: budget {step.recorded.budget} -> {step.new.budget},"
                    f" tokens {step.recorded.tokens:.2f} -> {step.new.tokens:.2f}"
                )
    except (PolicyError, TraceError) as error:
        _fail(str(error), _BAD_INPUT)
    recorded = sorted({file.policy for file in files})
    if plot is not None:
        _plot(replayed, plot, recorded, str(built))
    report = {"recorded_policies": recorded, "policy": str(built), **totals.to_json()}
    if json:
        typer.echo(json_module.dumps(report))
    else:
        _print(report)


def _print(report: dict[str, Any]) -> None:
    steps, outcomes = report["num_steps"], report["num_steps_with_outcome"]
    typer.echo(f"{steps} steps, {outcomes} with an outcome, {report['num_same_budget']} alike")
    names = ", ".join(report["recorded_policies"])
    typer.echo(f"{'':24}{names:>22}{report['policy']:>22}")
    for key in report["new"]:
        left, right = report["recorded"][key], report["new"][key]
        typer.echo(f"{key.replace('_', ' '):24}{left:>22.3f}{right:>22.3f}")


def _plot(replayed: list[Any], path: Path, recorded: list[str], policy: str) -> None:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        _fail(f"{error}: pip install 'specsched[plot]'", _MISSING_PACKAGE)
    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(9, 6))
    ids = [step.step_id for step in replayed]
    for name, label in (("recorded", ", ".join(recorded)), ("new", policy)):
        sides = [getattr(step, name) for step in replayed]
        above.plot(ids, [side.budget for side in sides], label=label, linewidth=0.8)
        regret, total = [], 0.0
        for side in sides:
            total += side.regret
            regret.append(total)
        below.plot(ids, regret, label=label)
    above.set_ylabel("budget")
    below.set_ylabel("regret so far (tokens)")
    below.set_xlabel("step")
    above.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)
