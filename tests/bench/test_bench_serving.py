"""What scheduling brings to serving on this machine, by `specsched bench sweep`'s own code.

Real processes, all alive in one session: a scheduler, an executor that drafts, and one that does
not. Rounds of all settings alternate; ratios are within a repeat. Prompts were written by hand.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from specsched_client import Sampling
from specsched_client.bench.plan import BASELINE
from specsched_client.bench.prompts import read_prompts
from specsched_client.bench.session import NoProgress
from specsched_client.bench.sweep.plan import SweepPlan
from specsched_client.bench.sweep.report import SweepReport
from specsched_client.bench.sweep.run import run_sweep
from specsched_client.bench.sweep.verdict import BLOCK

from tests.integration.processes import ExecutorProcess, SchedulerProcess, start_scheduler

PROMPTS = Path(__file__).parent / "prompts"
NUM_REPEATS = BLOCK
NUM_REQUESTS = 16
MAX_TOKENS = 96


@dataclass(frozen=True)
class Case:
    """Prompts of one kind, a temperature and loads; `bar` is what the ratio has to reach."""

    prompts: str
    temperature: float
    concurrency: tuple[int, ...]
    bar: float


NGRAM_CASES = (Case("code", 0.0, (1,), 1.15), Case("chat", 1.0, (1, 4, 16), 0.97))
DSPARK_CASES = (Case("code", 0.0, (1,), 1.3), Case("chat", 1.0, (1, 16), 0.97))


@dataclass(frozen=True)
class Rig:
    scheduler: SchedulerProcess
    drafting: ExecutorProcess
    plain: ExecutorProcess


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    run_dir = tmp_path / "run"
    with ExitStack() as stack:
        scheduler = stack.enter_context(start_scheduler(run_dir))
        drafting = stack.enter_context(ExecutorProcess(run_dir, "--drafter", request.param))
        drafting.wait_until_serving()
        drafting.wait_until_attached()
        plain = stack.enter_context(ExecutorProcess(run_dir, "--drafter", "none"))
        plain.wait_until_serving()
        yield Rig(scheduler, drafting, plain)


@pytest.mark.bench
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("rig", "name", "cases"),
    [("ngram", "serving_ngram", NGRAM_CASES), ("dspark", "serving_dspark", DSPARK_CASES)],
    indirect=["rig"],
    ids=["ngram", "dspark"],
)
def test_scheduling_against_static_settings(
    rig: Rig, name: str, cases: tuple[Case, ...], record_bench: Any, tmp_path: Path
) -> None:
    results: list[dict[str, Any]] = []
    document: dict[str, Any] = {}
    for place, case in enumerate(cases):
        report = _measure(rig, case, tmp_path / f"{place}.jsonl")
        document = json.loads(report.to_json())
        results += [_row(case, each) for each in document["results"]]
        for table in report.tables():
            Console(width=140).print(f"{case}", table)
    record_bench(name, results, executors=document["executors"], settings=document["settings"])


def _measure(rig: Rig, case: Case, state: Path) -> SweepReport:
    prompts = PROMPTS / f"{case.prompts}.jsonl"
    plan = SweepPlan(
        prompts=tuple(read_prompts(prompts)),
        prompt_file=prompts.name,
        target=rig.drafting.target,
        baseline_target=rig.plain.target,
        scheduler_target=rig.scheduler.target,
        concurrency=case.concurrency,
        fixed=(2, 7),
        policy="throughput",
        sampling=Sampling(temperature=case.temperature, max_tokens=MAX_TOKENS, ignore_eos=True),
        num_requests=NUM_REQUESTS,
        seed=None,  # of seeded requests the drafts are other ones, and teach nothing
        timeout_s=None,
        half_width=0.015,
        min_repeats=NUM_REPEATS,
        max_repeats=NUM_REPEATS,
    )
    return asyncio.run(run_sweep(plan, state, NoProgress(), command=["make", "bench"]))


def _row(case: Case, result: dict[str, Any]) -> dict[str, Any]:
    ratio = result["verdict"]["scheduled_to_static"][BASELINE]
    return {
        "prompts": case.prompts,
        "temperature": case.temperature,
        "concurrency": result["load"]["concurrency"],
        "bar": case.bar,
        "ratio": ratio["mean"],
        "reaches_bar": ratio["mean"] >= case.bar,
        **result,
    }
