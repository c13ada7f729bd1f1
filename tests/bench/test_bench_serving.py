"""What scheduling brings to serving on this machine, by `specsched bench serve`'s own code.

Real processes, all alive in one session: a scheduler, an executor that drafts, and one that does
not. Rounds of all of them alternate; ratios are within a repeat. Prompts were written by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from specsched_client.bench.plan import BenchPlan, run_plan
from specsched_client.bench.report import Report
from specsched_client.bench.session import NoProgress
from specsched_client.bench.table import load_table

from tests.integration.processes import ExecutorProcess, start_scheduler

PROMPTS = Path(__file__).parent / "prompts"
NUM_REPEATS = 4
MAX_TOKENS = 96


@dataclass(frozen=True)
class Case:
    """Prompts of one kind, a temperature and loads; `bar` is what the ratio has to reach."""

    prompts: str
    temperature: float
    concurrency: tuple[int, ...]
    bar: float


NGRAM_CASES = (
    Case("code", 0.0, (1,), 1.15),
    Case("chat", 1.0, (1, 4, 16), 0.97),
)
DSPARK_CASES = (
    Case("math", 0.0, (1,), 1.3),
    Case("code", 0.0, (1,), 1.3),
    *(
        Case(prompts, temperature, (1, 4, 16), 0.97)
        for prompts in ("chat", "code", "math")
        for temperature in (0.0, 1.0)
    ),
)


@dataclass(frozen=True)
class Rig:
    run_dir: Path
    drafting: ExecutorProcess
    plain: ExecutorProcess


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    run_dir = tmp_path / "run"
    with ExitStack() as stack:
        stack.enter_context(start_scheduler(run_dir))
        drafting = stack.enter_context(ExecutorProcess(run_dir, "--drafter", request.param))
        drafting.wait_until_serving()
        drafting.wait_until_attached()
        plain = stack.enter_context(ExecutorProcess(run_dir, "--drafter", "none"))
        plain.wait_until_serving()
        yield Rig(run_dir, drafting, plain)


@pytest.mark.bench
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("rig", "name", "cases"),
    [("ngram", "serving_ngram", NGRAM_CASES), ("dspark", "serving_dspark", DSPARK_CASES)],
    indirect=["rig"],
    ids=["ngram", "dspark"],
)
def test_scheduling_against_no_drafts(
    rig: Rig, name: str, cases: tuple[Case, ...], record_bench: Any
) -> None:
    results = []
    for case in cases:
        report = _measure(rig, case)
        results += [_row(case, each) for each in report.document(with_requests=False)["results"]]
        for result in report.results:
            Console(width=120).print(f"{case}", load_table(result))
    document = report.document(with_requests=False)
    record_bench(name, results, executors=document["executors"], settings=document["settings"])


def _measure(rig: Rig, case: Case) -> Report:
    plan = BenchPlan.of(
        prompts=PROMPTS / f"{case.prompts}.jsonl",
        target=rig.drafting.target,
        baseline_target=rig.plain.target,
        concurrency=case.concurrency,
        rate=(),
        policies=("off", "throughput"),
        num_requests=None,
        num_repeats=NUM_REPEATS,
        num_warm_up=None,
        max_tokens=MAX_TOKENS,
        temperature=case.temperature,
        seed=0,
        ignore_eos=True,
        timeout_s=None,
        run_dir=rig.run_dir,
        scheduler=None,
    )
    report = asyncio.run(run_plan(plan, NoProgress(), command=["make", "bench"]))
    assert report.num_failed_requests == 0
    return report


def _row(case: Case, result: dict[str, Any]) -> dict[str, Any]:
    ratio = result["variants"]["throughput"]["ratio_to_baseline"]
    return {
        "prompts": case.prompts,
        "temperature": case.temperature,
        "concurrency": result["load"]["concurrency"],
        "bar": case.bar,
        "ratio": ratio["mean"],
        "reaches_bar": ratio["mean"] >= case.bar,
        **result,
    }
