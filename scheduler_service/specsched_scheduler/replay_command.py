"""`specsched replay`: another policy on recorded steps."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from specsched_protocol.exit_codes import ExitCode
from specsched_protocol.picture import PICTURE_FILE, PictureError, check_picture, save_picture

from specsched_scheduler.calibrate_file import SamplingClass

if TYPE_CHECKING:
    from specsched_scheduler.policies import BuiltPolicy
    from specsched_scheduler.trace.oracle.views import Recording

__all__ = ["replay"]


def replay(  # noqa: PLR0917 - options of the command
    trace: Annotated[
        Path,
        typer.Argument(
            help="A trace file, the folder of --trace-dir, or recorded drafts (.npz, as of"
            " `specsched calibrate`)."
        ),
    ],
    policy: Annotated[str, typer.Option(help='Policy to try, e.g. "threshold(0.4)".')],
    steps: Annotated[bool, typer.Option("--steps", help="Print every step, too.")] = False,
    oracle: Annotated[
        bool,
        typer.Option(
            "--oracle",
            help="Tell, too, what was lost against oracles. Of recorded drafts it is always told.",
        ),
    ] = False,
    cost: Annotated[
        Path | None,
        typer.Option(
            help="What steps cost, for recorded drafts: a trace file, or JSON of a cost model."
        ),
    ] = None,
    requests: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Requests at once, for recorded drafts; may be repeated. Default: 1, 8, 64."
        ),
    ] = None,
    sampling_class: Annotated[
        SamplingClass | None,
        typer.Option("--class", help="Class of recorded drafts that have no temperatures."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help=f"Draw a picture to this file: {PICTURE_FILE}.")
    ] = None,
) -> None:
    """Decide recorded steps by another policy and compare: tokens per second and regret.

    Exits with 1 where the policy fails.
    """
    from specsched_scheduler.learning.errors import TraceError
    from specsched_scheduler.policies import (
        PolicyError,
        PolicyFailedError,
        build_policy,
        check_effect_in_replay,
    )

    try:
        if plot is not None:
            check_picture("--plot", plot)
        built = build_policy(policy)
        check_effect_in_replay(built)
        if trace.suffix == ".npz":
            _require(cost is not None, "recorded drafts say nothing of steps: --cost is needed")
            _require(not steps and plot is None, "recorded drafts take no --steps and no --plot")
            is_greedy = None if sampling_class is None else sampling_class is SamplingClass.GREEDY
            from specsched_scheduler.trace.oracle.views import Recording

            drafts = Recording(trace, cost or trace, is_greedy)
            _replay_drafts(drafts, built, requests or [1, 8, 64], as_json=json)
        else:
            given = (cost, requests, sampling_class)
            _require(not any(given), "--cost, --requests and --class are for recorded drafts")
            _replay_steps(trace, built, with_oracle=oracle, steps=steps, as_json=json, plot=plot)
    except (PolicyError, TraceError) as error:
        _fail(str(error), ExitCode.BAD_INPUT)
    except PictureError as error:
        _fail(str(error), error.exit_code)
    except PolicyFailedError as error:
        _fail(str(error), ExitCode.FAILED)
    except ImportError as error:
        _fail(f"{error}: pip install 'specsched[trace]'", ExitCode.MISSING_PACKAGE)


def _replay_steps(
    trace: Path,
    built: BuiltPolicy,
    *,
    with_oracle: bool,
    steps: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    from specsched_scheduler.trace.reader import read_trace_files
    from specsched_scheduler.trace.replay import ReplayTotals
    from specsched_scheduler.trace.replay import replay as replay_steps

    totals, replayed = ReplayTotals(), []
    files = list(read_trace_files(trace))
    for step in replay_steps(files, built):
        totals.add(step)
        replayed.append(step)
        if steps and not as_json:
            typer.echo(
                f"step {step.step_id}: budget {step.recorded.budget} -> {step.new.budget},"
                f" tokens {step.recorded.tokens:.2f} -> {step.new.tokens:.2f}"
            )
    recorded = sorted({file.policy for file in files})
    if plot is not None:
        _plot(replayed, plot, recorded, str(built))
    report = {"recorded_policies": recorded, "policy": str(built), **totals.to_json()}
    if with_oracle:
        from specsched_scheduler.trace.oracle.views import judge_recorded

        report["oracle"] = judge_recorded(files, built)
    if as_json:
        typer.echo(json_module.dumps(report))
    else:
        _print(report)


def _replay_drafts(
    drafts: Recording, built: BuiltPolicy, requests: list[int], *, as_json: bool
) -> None:
    from specsched_scheduler.trace.oracle.views import judge_drafts

    results = judge_drafts(drafts, built, requests)
    if as_json:
        typer.echo(json_module.dumps({"policy": str(built), "results": results}))
        return
    for result in results:
        typer.echo(f"{result['class']}, {result['num_requests']} requests at once")
        _print_oracle(result["oracle"])


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        _fail(otherwise, ExitCode.BAD_INPUT)


def _print(report: dict[str, Any]) -> None:
    steps, outcomes = report["num_steps"], report["num_steps_with_outcome"]
    typer.echo(f"{steps} steps, {outcomes} with an outcome, {report['num_same_budget']} alike")
    names = ", ".join(report["recorded_policies"])
    typer.echo(f"{'':24}{'recorded':>22}{'new':>22}")
    typer.echo(f"{'policy':24}{names:>22}{report['policy']:>22}")
    for key in report["new"]:
        left, right = report["recorded"][key], report["new"][key]
        typer.echo(f"{key.replace('_', ' '):24}{left:>22.3f}{right:>22.3f}")
    if "oracle" in report:
        _print_oracle(report["oracle"])


def _print_oracle(oracle: dict[str, Any]) -> None:
    from specsched_scheduler.trace.oracle.views import oracle_lines

    for line in oracle_lines(oracle):
        typer.echo(line)


def _plot(replayed: list[Any], path: Path, recorded: list[str], policy: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6))
    above, below = figure.subplots(2, sharex=True)
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
    save_picture("--plot", figure, path)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)
