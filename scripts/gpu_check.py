"""Everything that needs a GPU: the tests, then each measurement by itself; tables at the end.

python -m scripts.gpu_check quick|full [--model PATH] [--folder FOLDER] [--jobs N]

quick leaves out the measurements of whole models and of serving. Runs in the interpreter that it is
started with, which needs specsched with its extras `executor`, `gpu` and `dev`, and no network.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from scripts import gpu_table

__all__ = ["Part", "Result", "main", "parts", "run"]

_TESTS = Path("tests")
_MARK = "mark.gpu"
_KERNELS = "*_kernel*.py"
_TESTS_TIMEOUT_S = 420.0
_BENCH_TIMEOUT_S = 300.0
_NOTHING_RAN = 5
_SUMMARY = re.compile(r"^=*\s*(\d+ \w+.*) in [\d.]+s")
_TAIL_LINES = 30


@dataclass(frozen=True, slots=True)
class Part:
    """A run of pytest by itself: what breaks a CUDA context, or hangs, breaks no other part."""

    name: str
    arguments: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """How a part ended. summary: pytest's own, or why there is none."""

    part: Part
    is_success: bool
    summary: str
    seconds: float


def parts(folder: Path, *, is_quick: bool, jobs: int, model: Path | None = None) -> list[Part]:
    """The tests in one part, side by side; then each file of measurements, records to `folder`."""
    marked = _marked()
    benches = [path for path in marked if path.is_relative_to(_TESTS / "bench")]
    tests = [str(path) for path in marked if path not in benches]
    select = ("-n", str(jobs), "-m", "gpu and not bench")
    found = [Part("tests", (*select, *tests), _TESTS_TIMEOUT_S)]
    options = ["-m", "gpu and bench", "--timeout=0", f"--bench-dir={folder}"]
    if model is not None:
        options.append(f"--bench-model={model}")
    for path in benches:
        if not is_quick or path.match(_KERNELS):
            name = path.stem.removeprefix("test_")
            found.append(Part(name, (*options, str(path)), _BENCH_TIMEOUT_S))
    return found


def _marked() -> list[Path]:
    """Files with tests that need a GPU; of a conftest.py, which marks by a fixture, the folder."""
    marked = [path for path in sorted(_TESTS.rglob("*.py")) if _MARK in path.read_text("utf-8")]
    folders = [path.parent for path in marked if path.name == "conftest.py"]
    files = [path for path in marked if not any(map(path.is_relative_to, folders))]
    return folders + files


def run(part: Part, log: Path) -> Result:
    """Run it to its end or its time limit, output to `log`; its children end with it."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *part.arguments]
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        child = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            status = child.wait(part.timeout_s)
        except subprocess.TimeoutExpired:
            return Result(part, False, f"stopped after {part.timeout_s:g} s", part.timeout_s)
        finally:
            _end_group(child)
    seconds = time.monotonic() - began
    if status == _NOTHING_RAN:
        return Result(part, False, "nothing ran", seconds)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    summaries = [match[1] for line in lines if (match := _SUMMARY.match(line))]
    summary = summaries[-1] if summaries else f"pytest ended with {status}"
    return Result(part, status == 0, summary, seconds)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """The child leads a session of its own, so that the servers it started end as well."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _table(results: Sequence[Result]) -> Table:
    table = Table("part", "", "what ran", "seconds", title="What needs a GPU")
    for result in results:
        verdict = "[green]ok[/]" if result.is_success else "[red]FAILED[/]"
        table.add_row(result.part.name, verdict, result.summary, f"{result.seconds:.0f}")
    return table


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extent", choices=("quick", "full"))
    parser.add_argument(
        "--model", type=Path, help="for what takes a real one: a GGUF file or folder"
    )
    parser.add_argument("--folder", type=Path, default=Path(".cache/gpu-check"))
    jobs = max(1, min(8, len(os.sched_getaffinity(0)) // 2))
    parser.add_argument("--jobs", type=int, default=jobs, help="processes that run the tests")
    options = parser.parse_args(arguments)
    if options.model is not None and not options.model.exists():
        parser.error(f"--model {options.model}: no such path; accepted: a GGUF file or a folder")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every part, whatever became of those before; 0 where all succeeded."""
    options, console = _options(arguments), Console()
    if not torch.cuda.is_available():
        console.print("torch sees no GPU: `specsched doctor` says why")
        return 1
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.json"), *folder.glob("*.log")):
        old.unlink()
    chosen = parts(
        folder, is_quick=options.extent == "quick", jobs=options.jobs, model=options.model
    )
    results: list[Result] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the part that runs ends as well
    with contextlib.suppress(KeyboardInterrupt):
        results.extend(_reported(part, folder / f"{part.name}.log", console) for part in chosen)
    has_records = gpu_table.main([str(folder)]) == 0
    console.print(_table(results))
    if len(results) < len(chosen):
        console.print(f"ended before {chosen[len(results)].name} was through")
        return 1
    return 0 if has_records and all(result.is_success for result in results) else 1


def _reported(part: Part, log: Path, console: Console) -> Result:
    """Run it, and show where it failed."""
    console.print(f"{part.name} ...", highlight=False)
    result = run(part, log)
    if not result.is_success:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        console.print("\n".join(tail), markup=False, highlight=False)
        console.print(f"all of it: {log}")
    return result


if __name__ == "__main__":
    raise SystemExit(main())
