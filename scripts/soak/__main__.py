"""Swap, kill and stop schedulers under load; exits with 1 where a request notices.

python -m scripts.soak                    # 20 swaps, 20 kills
python -m scripts.soak --minutes 20       # random faults for so long
python -m scripts.soak -- --device cuda   # an executor with options of its own

With --record the figures are kept as docs/benchmarks/README.md says.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specsched_client import Sampling

from scripts.arguments import split_arguments
from tests.bench.recording import RAW_DIRECTORY, write_record

from .installations import make_installations
from .load import Load, reference_answers
from .processes import SoakError, resources
from .report import PhaseReport, growth_faults
from .rig import Rig
from .step_times import recorded, step_times

_NUM_WARM_UP_ANSWERS = 6
"""For each client, before memory is looked at: steps of most sizes came by then."""
_MAX_SAMPLES = 20
_POLL_S = 0.02
_STEP_TIMES_POLL_S = 0.25
"""Rare enough to delay fewer steps than one in a hundred, of a millisecond each."""


def main() -> int:
    """Run, print figures, keep them where wanted."""
    options = _options()
    # What was started is ended then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
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
    if options.record is not None:
        print(f"soak: recorded in {_record(options, figures)}")
    return 1 if figures["faults"] else 0


def _soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    installations = make_installations(directory, as_trees=options.trees, policy=options.policy)
    executor_options = _executor_options(options)
    sampling = Sampling(temperature=0.0, max_tokens=options.max_tokens, ignore_eos=True)
    rng = random.Random(options.seed)
    poll_s = _STEP_TIMES_POLL_S if options.step_times else _POLL_S
    rig = Rig(directory, installations, executor_options, poll_s=poll_s)
    try:
        expected = reference_answers(rig.target, sampling)
        load = Load(rig.target, expected, sampling, is_exact=not options.any_answer)
        rig.compile_all()
        load.start(options.concurrency)
        rig.start("blue")
        ran = _Run(rig, load, options, rng)
        ran.go(_events(options, rng))
        load.stop()
        return _figures(options, rig, load, ran)
    finally:
        rig.close()


class _Run:
    """Phase after phase. samples: resources of the executor."""

    def __init__(
        self, rig: Rig, load: Load, options: argparse.Namespace, rng: random.Random
    ) -> None:
        self.reports = {kind: PhaseReport() for kind in ("quiet", "swap", "kill", "stall")}
        self.samples: list[dict[str, int]] = []
        self._rig, self._load, self._options, self._rng = rig, load, options, rng

    def go(self, events: Iterator[str]) -> None:
        """The events; quiet phases before and after them, with --step-times between them too."""
        self._load.pass_answers(_NUM_WARM_UP_ANSWERS)
        self._phase("quiet")
        self._look()
        for event in events:
            self._phase(event)
            number = self.reports[event].num_answers
            print(f"soak: {event}, active: {self._rig.active()}, {number} answers by now")
            self._look()
            if self._load.faults:
                break
            if self._options.step_times:
                self._phase("quiet")
        self._phase("quiet")
        self._look()

    def _look(self) -> None:
        self.samples.append(resources(self._rig.executor.pid))

    def _phase(self, kind: str) -> None:
        before = self._rig.counters()
        self._load.begin_phase()
        with recorded(self._rig.spans, kind):
            match kind:
                case "swap":
                    self._rig.swap()
                case "kill":
                    self._rig.kill(self._rng)
                case "stall":
                    self._rig.stall()
                case _:
                    time.sleep(self._options.quiet_seconds)
        self.reports[kind].add(before, self._rig.counters(), self._load.begin_phase())


def _events(options: argparse.Namespace, rng: random.Random) -> Iterator[str]:
    if options.minutes:
        end = time.monotonic() + options.minutes * 60
        while time.monotonic() < end:
            yield rng.choice(("swap", "kill", "stall"))
        return
    events = ["swap"] * options.swaps + ["kill"] * options.kills
    rng.shuffle(events)
    yield from events


def _figures(options: argparse.Namespace, rig: Rig, load: Load, ran: _Run) -> dict[str, Any]:
    counters, reports = rig.counters(), ran.reports
    answer = rig.client.schedulers()
    faults = list(load.faults)
    if counters.num_failed_requests or counters.num_failed_steps:
        faults.append(f"{counters.num_failed_requests} requests and steps failed")
    # A swap leaves no step without somebody to follow; late plans are the machine's.
    unexpected = set(reports["swap"].fallbacks) - {"late", "torn"}
    faults += [f"steps of swaps fell back: {reason}" for reason in unexpected]
    samples = ran.samples
    faults += growth_faults(samples[0], samples[-1])
    every = -(-len(samples) // _MAX_SAMPLES)
    return {
        "faults": faults,
        "versions": sorted(rig.versions),
        "concurrency": options.concurrency,
        "seed": options.seed,
        "cpus": os.cpu_count(),
        "phases": {kind: report.to_json() for kind, report in reports.items()},
        "switches": dict(answer.num_switches),
        "step_times": step_times(rig.executor.log, rig.spans) if options.step_times else None,
        "executor_before": samples[0],
        "executor_after": samples[-1],
        "executor_resident_mib": [each["resident_kib"] // 1024 for each in samples[::every]],
    }


def _record(options: argparse.Namespace, figures: Mapping[str, Any]) -> Path:
    """One record for each kind of run; its results are the phases, then the executor."""
    bench, command = _bench(options)
    phases = [{"phase": kind, **report} for kind, report in figures["phases"].items()]
    shared = ("versions", "concurrency", "seed")
    told = {name: value for name, value in figures.items() if name not in {*shared, "phases"}}
    return write_record(
        bench,
        [*phases, told],
        settings={name: figures[name] for name in shared}
        | {"model": options.model.name if options.model else "default"}
        | {"max_tokens": options.max_tokens},
        command=command,
        directory=options.record,
    )


def _bench(options: argparse.Namespace) -> tuple[str, str]:
    """Name of the record and what repeats it."""
    if options.step_times:
        return "soak_step_times", f"python -m scripts.soak {shlex.join(sys.argv[1:])}"
    if options.minutes:
        return "soak_random_faults", f'make soak SOAK="--minutes {options.minutes:g} --record"'
    chosen = f"--swaps {options.swaps} --kills {options.kills}"
    return "soak_swaps_kills", f'make soak SOAK="{chosen} --record"'


def _executor_options(options: argparse.Namespace) -> list[str]:
    chosen = ["--max-num-seqs", str(options.concurrency), "--max-context-tokens", "1024"]
    chosen += options.executor_options or ["--profile", "quick", "--drafter", "ngram"]
    chosen += ["--log-level", "debug"] if options.step_times else []
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
    parser.add_argument(
        "--record", type=Path, nargs="?", const=RAW_DIRECTORY, help="folder for a record"
    )
    parser.add_argument("--quiet-seconds", type=float, default=5.0, help="of a phase without event")
    parser.add_argument(
        "--step-times", action="store_true", help="report steps by phase, quiet ones in between"
    )
    parser.add_argument(
        "--policy", help="of both versions, for steps of the same work; default: one for each"
    )
    parser.add_argument(
        "--any-answer", action="store_true", help="count answers that differ, for a GPU's rounding"
    )
    parser.add_argument(
        "--trees", action="store_true", help="copy packages where no wheel can be built"
    )
    ours, executor_options = split_arguments(sys.argv[1:])
    return parser.parse_args(ours, argparse.Namespace(executor_options=executor_options))


if __name__ == "__main__":
    sys.exit(main())
