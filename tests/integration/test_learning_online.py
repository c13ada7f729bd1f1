"""An executor told wrong costs, with a drafter that boasts, and a scheduler process that finds out.

Executor: the real engine, shared memory and control plane in this process, over a target whose step
takes a known time. Scheduler: a process of its own. What it learned is read with the command line.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from specsched_client import SchedulerClient
from specsched_client.cli._main import app
from specsched_executor.attach import AttachConfig, AttachManager, ExecutorFacts
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.engine import Engine
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from typer.testing import CliRunner

from tests.executor.engine.tiny import Result, StochasticDrafter, TableTarget, config, random_table
from tests.integration.processes import SchedulerProcess, start_scheduler, wait_until

pytestmark = pytest.mark.slow

VOCAB_SIZE, K, NUM_REQUESTS = 16, 3, 4
BASE_S, ROW_S = 0.001, 0.0005
CLAIMED = 0.95
# Rows are said to be free.
WRONG_PROFILE = plan_pb2.CostModel(
    verify=[plan_pb2.VerifyCost(tokens=n, ms=[1e3 * BASE_S]) for n in (1, 4, 8, 16)],
    capture_limit=16,
    fingerprint="wrong",
)


class SlowTarget(TableTarget):
    """A step takes BASE_S and ROW_S for each of its rows."""

    def forward(self, batch, kv_cache):
        time.sleep(BASE_S + ROW_S * len(batch.token_ids))
        return super().forward(batch, kv_cache)


class Executor:
    """The engine with its transport, attached to whatever serves in the run directory."""

    def __init__(self, directory: Path) -> None:
        run_dir = RunDir.open(directory)
        self.transport = SharedMemoryTransport(run_dir, RegionShape(NUM_REQUESTS, K))
        facts = ExecutorFacts(
            boot_id=self.transport.boot_id,
            name="boaster",
            version="1",
            model=pb.ModelFacts(
                name="table", drafter="boaster", max_requests=NUM_REQUESTS, max_draft_tokens=K
            ),
            capture_sizes=(),
            cost=WRONG_PROFILE,
            current_step_id=lambda: self.transport.counters().num_requests,
        )
        self.attacher = AttachManager(run_dir, self.transport, facts, AttachConfig(poll_ms=20))
        drafter = StochasticDrafter(
            random_table(VOCAB_SIZE, seed=2)[0], K, lambda before: torch.full(before.shape, CLAIMED)
        )
        self.engine = Engine(
            SlowTarget(random_table(VOCAB_SIZE, seed=1), max_context_tokens=1024),
            drafter,
            self.transport,
            config(num_kv_blocks=1024, max_draft_tokens=K, max_num_seqs=NUM_REQUESTS),
            calibrations=self.transport.calibration,
        )
        self._num_asked = 0

    def answer(self, num_tokens: int) -> None:
        """Answer as many requests at once as there is room for."""
        results = [Result() for _ in range(NUM_REQUESTS)]
        for result in results:
            self._num_asked += 1
            sampling = SamplingParams(
                temperature=1.0, seed=self._num_asked, max_tokens=num_tokens, ignore_eos=True
            )
            request = GenerationRequest(f"r{self._num_asked}", (1, 2, 3), sampling)
            self.engine.submit(request, result)
        wait_until(lambda: all(each.finish_reason for each in results), timeout_s=120)


@contextmanager
def serving(directory: Path) -> Iterator[Executor]:
    executor = Executor(directory)
    executor.engine.start()
    executor.attacher.start()
    try:
        yield executor
    finally:
        executor.attacher.stop()
        executor.engine.stop()
        executor.transport.close()


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    with start_scheduler(tmp_path / "run") as process:
        yield process


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def command(*arguments: str) -> Any:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def learned(target: str) -> Any:
    (attachment,) = json.loads(command("cost", "show", "--json", "--scheduler", target))[
        "attachments"
    ]
    return attachment


class Watch:
    """Collects decisions while something runs."""

    def __init__(self, target: str) -> None:
        self.decisions: list[plan_pb2.Decision] = []
        self._client = SchedulerClient(target)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for response in self._client.watch(max_per_second=200):
            if response.num_requests == NUM_REQUESTS:
                self.decisions.append(response.decision)


def test_boasts_and_wrong_costs_are_found_out(scheduler: SchedulerProcess, tmp_path: Path) -> None:
    with serving(tmp_path / "run") as executor:
        wait_until(lambda: bool(executor.attacher.attachments()))
        watch = Watch(scheduler.target)
        executor.answer(30)
        first = learned(scheduler.target)
        early = list(watch.decisions)
        assert not first["cost"]["in_use"]
        assert executor.transport.calibration() is None

        last: dict[str, Any] = {}
        late: list[Any] = []

        def has_settled() -> bool:
            """Whether all of a round was decided by what is true; the first fits need not be."""
            num_before = len(watch.decisions)
            executor.answer(90)
            last.update(learned(scheduler.target))
            late[:] = watch.decisions[num_before:]
            size = next(s for s in last["cost"]["sizes"] if s["tokens"] == 16)
            position = last["sampled"]["positions"][0]
            error = abs(position["calibrated_share"] - position["accepted_share"])
            return (
                last["cost"]["in_use"]
                and position["intercept"] != 0.0
                and error < 0.05
                and max(each.expected_tokens for each in late) < NUM_REQUESTS * (1 + 0.8 * K)
                and size["corrected_ms"] > 0.9e3 * (BASE_S + 16 * ROW_S)
                and min(each.expected_ms for each in late) > 1e3 * BASE_S
            )

        wait_until(has_settled, timeout_s=120)
        shown = command("cost", "show", "--scheduler", scheduler.target)
        drawn = command("calibration", "show", "--scheduler", scheduler.target)

        # What a step of all drafts takes: said to be BASE_S.
        assert max(each.expected_ms for each in early) == pytest.approx(1e3 * BASE_S)
        sizes = {each["tokens"]: each for each in last["cost"]["sizes"]}
        assert sizes[16]["profiled_ms"] == 1e3 * BASE_S
        assert sizes[16]["corrected_ms"] > 0.9e3 * (BASE_S + 16 * ROW_S)
        # What drafts are worth: said to be 0.95.
        position = last["sampled"]["positions"][0]
        assert position["raw_share"] == pytest.approx(CLAIMED, abs=0.01)
        assert position["accepted_share"] < 0.8
        assert position["calibrated_share"] == pytest.approx(position["accepted_share"], abs=0.06)
        assert last["greedy"]["num_drafts"] == "0"
        # So decisions expect less of more time, and the executor ranks by the same calibration.
        assert max(each.expected_tokens for each in early) > NUM_REQUESTS * (1 + 0.9 * K)
        assert max(each.expected_tokens for each in late) < NUM_REQUESTS * (1 + 0.8 * K)
        assert min(each.expected_ms for each in late) > 1e3 * BASE_S
        ranking = executor.transport.calibration()
        assert ranking is not None
        assert float(ranking.intercept[1, 0]) == pytest.approx(position["intercept"], abs=0.5)
    assert "corrected" in shown
    assert "sampled" in drawn
