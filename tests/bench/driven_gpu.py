"""An executor on a GPU, attached to a scheduler process, whose engine is driven step by step."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.device.pipelined_loop import PipelinedLoop
from specsched_executor.garbage import keep_what_is_there
from specsched_executor.serve.assembly import Executor, build_executor
from specsched_protocol.logs import logs_on_stderr

from tests.bench.unread import Unread
from tests.integration.processes import start_scheduler

PROMPTS = Path(__file__).parent / "prompts" / "chat.jsonl"
TRACE = Path(__file__).parents[1] / "fixtures" / "drafts.npz"
SHIPPED = "smollm2_135m_instruct"
MAX_DRAFT_TOKENS = 7


class DrivenGpu:
    """The engine of an executor that is attached over shared memory; its thread is the caller."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.engine = executor.engine
        assert isinstance(self.engine._loop, PipelinedLoop)
        self.loop = self.engine._loop
        self._num_submitted = 0
        self._unread = Unread()
        lines = PROMPTS.read_text(encoding="utf-8").splitlines()
        encode = executor.loaded.tokenizer.encode
        self._prompts = [tuple(encode(json.loads(line)["turns"][0])[:64]) for line in lines]

    def submit(self, num_requests: int, max_tokens: int, *, first: int = 0) -> None:
        """Greedy requests of prompts from `first` on."""
        for index in range(first, first + num_requests):
            sampling = SamplingParams(
                temperature=0.0, seed=index, max_tokens=max_tokens, ignore_eos=True
            )
            prompt = self._prompts[index % len(self._prompts)]
            self._num_submitted += 1
            request = GenerationRequest(str(self._num_submitted), prompt, sampling)
            self.engine.submit(request, self._unread)
        self.engine._take_orders()

    def finish(self) -> None:
        """Step until nothing is left."""
        while self.loop.has_work:
            self.step()

    def step(self) -> None:
        """One iteration of the engine's thread."""
        self.loop.step()
        self.engine._take_snapshot()


@contextmanager
def driven_gpu(
    folder: Path, *, policy: str = "throughput", max_num_seqs: int = 256, model: str | None = None
) -> Iterator[DrivenGpu]:
    """model: a GGUF file or folder; None: random weights of SmolLM2-135M, outcomes of a recording.

    Steps without a scheduler verify full drafts.
    """
    made_up = {"load_format": "dummy", "preset": "smollm2-135m", "acceptance_trace": TRACE}
    checkpoint = Path(__file__).parents[2] / "executor/specsched_executor/drafters/shipped"
    with logs_on_stderr(), start_scheduler(folder / "run", policy=policy) as scheduler:
        executor = build_executor(
            ExecutorConfig(
                device="cuda",
                run_dir=folder / "run",
                drafter="dspark",
                drafter_checkpoint=checkpoint / SHIPPED,
                max_draft_tokens=MAX_DRAFT_TOKENS,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=2048,
                max_context_tokens=1024,
                fallback=f"fixed({MAX_DRAFT_TOKENS})",
                failover_after_ms=60_000,
                profile="quick",
                port=0,
                **({"model": Path(model)} if model else made_up),  # type: ignore[arg-type]
            )
        )
        try:
            assert executor.attacher is not None
            executor.attacher.start()
            while not executor.attacher.attachments():
                assert scheduler.popen.poll() is None, scheduler.log
                time.sleep(0.05)
            keep_what_is_there()
            yield DrivenGpu(executor)
        finally:
            torch.cuda.synchronize()
            executor.stop()
