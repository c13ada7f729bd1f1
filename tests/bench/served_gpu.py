"""An executor on a GPU in this process, so that its graphs can be looked at, served over gRPC."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from specsched_client import Client
from specsched_executor.config import ExecutorConfig
from specsched_executor.device.device_step import DraftShape, StepShape
from specsched_executor.device.graphs import StepGraphs
from specsched_executor.device.pipelined_loop import PipelinedLoop
from specsched_executor.front_end import FrontEndProcess, FrontEndSetup
from specsched_executor.model.sparse_mla.layouts import step_layout
from specsched_executor.serve.assembly import Executor, build_executor
from specsched_executor.serve.facts import gateway_config, served_model
from specsched_executor.telemetry import RequestMeter
from specsched_protocol.v1.executor_pb2 import StepCounters

from tests.integration.processes import wait_until

START_TIMEOUT_S = 240.0
COUNTED = ("steps", "planned_steps", "failed_steps", "rows", "drafted_tokens")
COUNTED += ("verified_tokens", "accepted_tokens", "output_tokens")

T = TypeVar("T")


@dataclass(frozen=True)
class Totals:
    """What the executor counts of its steps, and how often shapes ran as graphs and without one."""

    counters: StepCounters
    replays: Counter[StepShape | DraftShape]
    eager: Counter[StepShape | DraftShape]


class ServedGpu:
    """Its front end takes requests at `target` from the start; steps run once `start` was called.

    So requests that are to come in one step can all be there before it.
    """

    def __init__(self, executor: Executor, target: str) -> None:
        self.executor = executor
        self.target = target

    def start(self) -> None:
        """Begin to run steps."""
        self.executor.engine.start()

    def wait_for_requests(self, count: int) -> None:
        """Wait until as many have ever arrived."""
        engine = self.executor.engine
        wait_until(lambda: engine._num_arrived >= count, timeout_s=START_TIMEOUT_S)

    def layout_of_decoding(self, num_requests: int) -> str:
        """Of the indexer, in a step without prompts. All are alike for certain of one alone."""
        plan = self.executor.loaded.model.attention_plan.indexer
        assert plan is not None
        chosen = plan.layout(num_requests)
        return str(step_layout(chosen, has_prompts=False, is_uniform=num_requests == 1))

    def totals(self) -> Totals:
        """Of all steps so far, those of its profile included."""
        with Client(self.target) as client:
            counters = client.step_counters().counters
        graphs = self._graphs
        return Totals(counters, graphs.num_replays.copy(), graphs.num_eager.copy())

    def since(self, earlier: Totals) -> dict[str, Any]:
        """What was counted since; num_replays: steps without prompts in a graph, by layout.

        num_eager_steps: steps without prompts, and drafts, in no graph.
        """
        now = self.totals()
        replays: Counter[str] = Counter()
        for shape, count in (now.replays - earlier.replays).items():
            if isinstance(shape, StepShape) and not shape.has_prompts:
                replays[self.layout_of_decoding(shape.padded_requests)] += count
        eager = (now.eager - earlier.eager).items()
        decoding = [n for shape, n in eager if not getattr(shape, "has_prompts", False)]
        return {
            "num_replays": dict(replays),
            "num_eager_steps": sum(decoding),
            **_counted(now.counters, earlier.counters),
        }

    @property
    def _graphs(self) -> StepGraphs:
        loop = self.executor.engine._loop
        assert isinstance(loop, PipelinedLoop)
        return loop._runner._graphs


def _counted(after: StepCounters, before: StepCounters) -> dict[str, Any]:
    names = [f"num_{each}" for each in COUNTED]
    fallbacks = {
        reason: count - before.num_fallback_steps.get(reason, 0)
        for reason, count in after.num_fallback_steps.items()
    }
    return {
        **{name: getattr(after, name) - getattr(before, name) for name in names},
        "fallbacks": {reason: count for reason, count in fallbacks.items() if count},
    }


@contextmanager
def served_gpu(config: ExecutorConfig) -> Iterator[ServedGpu]:
    """Build it, attach it where its options say so, and end it and its front end afterwards."""
    executor = build_executor(config)
    try:
        with _event_loop() as loop:
            front_end = _on(loop, _front_end(config, executor))
            try:
                attacher = executor.attacher
                if attacher is not None:
                    attacher.start()
                    wait_until(lambda: bool(attacher.attachments()), timeout_s=START_TIMEOUT_S)
                yield ServedGpu(executor, f"127.0.0.1:{front_end.port}")
            finally:
                _on(loop, front_end.stop(grace_s=0))
    finally:
        executor.stop()


async def _front_end(config: ExecutorConfig, executor: Executor) -> FrontEndProcess:
    """One process, as executors on a GPU have."""
    tokenizer = executor.loaded.tokenizer
    setup = FrontEndSetup(
        config,
        gateway_config(config),
        served_model(config, executor.loaded, executor.sizes),
        tokenizer.backend,
        tokenizer.files(),
    )
    front_end = FrontEndProcess(
        executor.engine, setup, executor.schedulers, RequestMeter(), on_failure=lambda: None
    )
    await front_end.start()
    return front_end


def _on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result(START_TIMEOUT_S)


@contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
