"""Measure the schedule against every static setting on this machine.

python -m scripts.prove PLAN.toml --output DIR [-- EXECUTOR OPTIONS]

Starts a scheduler and an executor, runs the sweeps of the plan one after the other and ends both.
The same command with the same folder goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.arguments import split_arguments
from scripts.soak.processes import SoakError

from .plan import Part, PlanError, read_plan
from .servers import Servers, serving

_SPECSCHED = (sys.executable, "-c", "from specsched_client.cli import main; main()")
"""The command line, installed or found by path alone."""
_GRACE_S = 60.0
"""Beyond a part's time: a repeat that was begun, warm-ups, figures."""


def main() -> int:
    """Run the plan; 1 where a part failed, 2 where nothing could be started."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        parts = read_plan(options.plan, options.part)
        options.output.mkdir(parents=True, exist_ok=True)
        first = parts[0].options_of_scheduler(options.output)
        starting = serving(options.output, options.executor_options, first, options.start_timeout)
        with starting as servers:
            failed = [part.name for part in parts if not _run(part, servers, options.output)]
    except (PlanError, SoakError) as error:
        print(f"prove: {error}", file=sys.stderr)
        return 2
    for line in summary(parts, options.output):
        print(line)
    if failed:
        print(f"prove: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(part: Part, servers: Servers, output: Path) -> bool:
    """Whether the part was measured, and what the scheduler had learned at its end is kept."""
    servers.use_scheduler(part.options_of_scheduler(output))
    is_done = _sweep(part, servers, output)
    _keep_learned(servers, output / part.name)
    return is_done


def _sweep(part: Part, servers: Servers, output: Path) -> bool:
    """Whether the part was measured; what it says is kept beside its result.

    A sweep that failed goes on once more, from its last finished repeat.
    """
    directory = output / part.name
    targets = ("--target", servers.executor_target, "--scheduler", servers.scheduler_target)
    print(f"prove: {part.name}", flush=True)
    ends = time.monotonic() + part.max_seconds
    for _ in range(2):
        left = max(1.0, ends - time.monotonic())
        options = part.model_copy(update={"max_seconds": left}).options(directory)
        if _run_logged([*_SPECSCHED, "bench", "sweep", *options, *targets], directory, left):
            return True
    return False


def _run_logged(command: Sequence[str], directory: Path, seconds: float) -> bool:
    with (directory / "log").open("ab") as log:
        try:
            done = subprocess.run(
                command, check=False, stdout=log, stderr=log, timeout=seconds + _GRACE_S
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def _keep_learned(servers: Servers, output: Path) -> None:
    """What the scheduler knows of costs and confidences at the end."""
    for subject in ("cost", "calibration"):
        command = [*_SPECSCHED, subject, "show", "--scheduler", servers.scheduler_target, "--json"]
        with (output / f"{subject}.json").open("wb") as file:
            subprocess.run(command, check=False, stdout=file, timeout=_GRACE_S)


def summary(parts: Sequence[Part], output: Path) -> Iterator[str]:
    """A line for each load that was measured: the policy against the best static setting."""
    for part in parts:
        result = output / part.name / "sweep.json"
        if result.is_file():
            for load in json.loads(result.read_text())["results"]:
                yield f"{part.name:12} {_line(load)}"


def _line(load: dict[str, Any]) -> str:
    verdict = load["verdict"]
    best = verdict["best_static"]
    speeds = {name: each["summary"]["tokens_per_s"] for name, each in load["variants"].items()}
    name, speed = list(speeds.items())[-1]
    chosen = " or ".join(dict.fromkeys(best["chosen"]))
    first, to_first = next(iter(verdict["scheduled_to_static"].items()))
    return (
        f"{load['load']['concurrency']:4} users, {verdict['num_repeats']} repeats:"
        f" {name} {speed:.0f} tokens/s, to {chosen} {_ratio(best['scheduled_to_best'])},"
        f" to {first} {_ratio(to_first)}"
    )


def _ratio(ratio: dict[str, Any]) -> str:
    return f"{ratio['mean']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.prove", description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="folder for all results")
    parser.add_argument("--part", action="append", help="only this one; may be repeated")
    parser.add_argument("--start-timeout", type=float, default=1200.0, help="seconds")
    ours, executor_options = split_arguments(sys.argv[1:])
    return parser.parse_args(ours, argparse.Namespace(executor_options=executor_options))


if __name__ == "__main__":
    sys.exit(main())
