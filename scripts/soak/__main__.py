"""Swap, kill and stop schedulers under load; exits with 1 where a request notices.

python -m scripts.soak                    # 20 swaps, 20 kills
python -m scripts.soak --minutes 20       # random faults for so long
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specsched_client import Sampling

from .installations import make_installations
from .load import Load, reference_answers
from .processes import SoakError, resources
from .report import PhaseReport
from .rig import Rig

_QUIET_S = 5.0


def main() -> int:
    """Run, print figures, keep them where wanted."""
    options = _options()
    directory = Path(tempfile.mkdtemp(prefix="soak-", dir=options.directory))
    print(f"soak: everything is kept in {directory}", flush=True)
    try:
        figures = _soak(options, directory)
    except SoakError as error:
        print(f"soak: FAILED: {error}", file=sys.stderr)
        return 1
    print(json.dumps(figures, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if figures["faults"] else 0


def _soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    installations = make_installations(directory)
    executor_options = _executor_options(options)
    sampling = Sampling(temperature=0.0, max_tokens=options.max_tokens, ignore_eos=True)
    rng = random.Random(options.seed)
    rig = Rig(directory, installations, executor_options)
    try:
        load = Load(rig.target, reference_answers(rig.target, sampling), sampling)
        rig.compile_all()
        load.start(options.concurrency)
        rig.start("blue")
        reports = _run(rig, load, _events(options, rng), rng)
        load.stop()
        return _figures(options, rig, load, reports)
    finally:
        rig.close()


def _run(rig: Rig, load: Load, events: Iterator[str], rng: random.Random) -> dict[str, Any]:
    reports = {kind: PhaseReport() for kind in ("quiet", "swap", "kill", "stall")}
    _phase(rig, load, reports, "quiet", rng)
    before = resources(rig.executor.pid)
    for event in events:
        _phase(rig, load, reports, event, rng)
        print(f"soak: {event}, active: {rig.active()}, {reports[event].num_answers} answers by now")
        if load.faults:
            break
    _phase(rig, load, reports, "quiet", rng)
    return {"reports": reports, "before": before, "after": resources(rig.executor.pid)}


def _phase(
    rig: Rig, load: Load, reports: dict[str, PhaseReport], kind: str, rng: random.Random
) -> None:
    before = rig.counters()
    load.begin_phase()
    match kind:
        case "swap":
            rig.swap()
        case "kill":
            rig.kill(rng)
        case "stall":
            rig.stall()
        case _:
            time.sleep(_QUIET_S)
    reports[kind].add(before, rig.counters(), load.begin_phase())


def _events(options: argparse.Namespace, rng: random.Random) -> Iterator[str]:
    if options.minutes:
        end = time.monotonic() + options.minutes * 60
        while time.monotonic() < end:
            yield rng.choice(("swap", "kill", "stall"))
        return
    events = ["swap"] * options.swaps + ["kill"] * options.kills
    rng.shuffle(events)
    yield from events


def _figures(
    options: argparse.Namespace, rig: Rig, load: Load, ran: dict[str, Any]
) -> dict[str, Any]:
    counters, reports = rig.counters(), ran["reports"]
    answer = rig.client.schedulers()
    faults = list(load.faults)
    if counters.num_failed_requests or counters.num_failed_steps:
        faults.append(f"{counters.num_failed_requests} requests and steps failed")
    # A swap leaves no step without somebody to follow; late plans are the machine's.
    unexpected = set(reports["swap"].fallbacks) - {"late", "torn"}
    faults += [f"steps of swaps fell back: {reason}" for reason in unexpected]
    return {
        "faults": faults,
        "versions": sorted(rig.versions),
        "concurrency": options.concurrency,
        "seed": options.seed,
        "cpus": os.cpu_count(),
        "phases": {kind: report.to_json() for kind, report in reports.items()},
        "switches": dict(answer.num_switches),
        "executor_before": ran["before"],
        "executor_after": ran["after"],
    }


def _executor_options(options: argparse.Namespace) -> list[str]:
    chosen = ["--max-num-seqs", str(options.concurrency), "--max-context-tokens", "1024"]
    chosen += ["--profile", "quick", "--drafter", "ngram"]
    return chosen + (["--model", str(options.model)] if options.model else [])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description=__doc__)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=0.0, help="random faults for so long")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--model", type=Path, help="another model than the default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, help="where logs and installations are kept")
    parser.add_argument("--out", type=Path, help="file for the figures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
