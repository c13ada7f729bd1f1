"""An executor told wrong costs, with a drafter that boasts: what a scheduler has to find out.

The real engine, shared memory and control plane in this process, over a target whose step takes a
known time. Its schedulers are processes of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from specsched_client import SchedulerClient
from specsched_executor.attach import AttachConfig, AttachManager, ExecutorFacts
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.engine import Engine
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests.executor.engine.tiny import Result, StochasticDrafter, TableTarget, config, random_table
from tests.integration.processes import wait_until

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
    """A step takes BASE_S and row_s for each of its rows."""

    row_s = ROW_S

    def forward(self, batch, kv_cache):
        time.sleep(BASE_S + self.row_s * len(batch.token_ids))
        return super().forward(batch, kv_cache)


class BoastingExecutor:
    """The engine with its transport, attached to whatever serves in the run directory."""

    def __init__(self, directory: Path, row_s: float = ROW_S) -> None:
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
        target = SlowTarget(random_table(VOCAB_SIZE, seed=1), max_context_tokens=1024)
        target.row_s = row_s
        self.engine = Engine(
            target,
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
            # Without a seed: what becomes of a seeded request's drafts teaches nothing.
            sampling = SamplingParams(temperature=1.0, max_tokens=num_tokens, ignore_eos=True)
            request = GenerationRequest(f"r{self._num_asked}", (1, 2, 3), sampling)
            self.engine.submit(request, result)
        wait_until(lambda: all(each.finish_reason for each in results), timeout_s=120)


@contextmanager
def serving(directory: Path, row_s: float = ROW_S) -> Iterator[BoastingExecutor]:
    """An executor that serves, on one thread of torch: the schedulers need the other cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    executor = BoastingExecutor(directory, row_s)
    executor.engine.start()
    executor.attacher.start()
    try:
        yield executor
    finally:
        executor.attacher.stop()
        executor.engine.stop()
        executor.transport.close()
        torch.set_num_threads(num_threads)


class Watch:
    """Collects a scheduler's decisions for full batches while something runs."""

    def __init__(self, target: str) -> None:
        self.decisions: list[plan_pb2.Decision] = []
        self._client = SchedulerClient(target)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for response in self._client.watch(max_per_second=200):
            if response.num_requests == NUM_REQUESTS:
                self.decisions.append(response.decision)
