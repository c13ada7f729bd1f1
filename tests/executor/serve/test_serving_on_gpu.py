"""The executor as its options build it, on a GPU."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.drafters.dspark import save_checkpoint
from specsched_executor.model import load_model
from specsched_executor.serve import assembly
from structlog.testing import capture_logs

from tests.executor.device.models import SMALL, random_decoder, random_drafter
from tests.integration.tiny_checkpoint import write_tiny_checkpoint

pytestmark = pytest.mark.gpu

NUM_REQUESTS = 12


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A decoder that the kernels have the shapes of, with the tokenizer of the tiny model."""
    loaded = load_model(write_tiny_checkpoint(tmp_path / "tiny"))

    def small(config: ExecutorConfig):
        assert config.device == "cuda"
        model = random_decoder(SMALL, "cuda", torch.bfloat16)
        return replace(loaded, model=model, config=model.config, dtype="bfloat16")

    monkeypatch.setattr(assembly, "_load", small)


def serve(executor: assembly.Executor, temperature: float) -> list[int]:
    """Tokens of requests that come together, in order of their ids."""
    counts = [0] * NUM_REQUESTS
    left = threading.Semaphore(0)

    def sink_of(index: int):
        def sink(delta):
            assert delta.error is None
            counts[index] += len(delta.token_ids)
            if delta.finish_reason is not None:
                left.release()

        return sink

    for index in range(NUM_REQUESTS):
        sampling = SamplingParams(
            temperature=temperature,
            seed=index,
            max_tokens=40,
            ignore_eos=True,
            frequency_penalty=0.2 * (index % 2),
            min_p=0.02 * (index % 3),
        )
        prompt = (index + 1, 8, 9) * (1 + index)
        executor.engine.submit(GenerationRequest(f"{index}", prompt, sampling), sink_of(index))
    executor.start(on_failure=lambda: left.release(NUM_REQUESTS))
    for _ in range(NUM_REQUESTS):
        assert left.acquire(timeout=60)
    return counts


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("drafter", "is_eager"), [("ngram", False), ("dspark", False), ("dspark", True)]
)
@pytest.mark.usefixtures("load")
def test_an_executor_serves_on_a_gpu(tmp_path, drafter, is_eager, temperature):
    options = {}
    if drafter == "dspark":
        checkpoint = random_drafter(SMALL, 4)
        save_checkpoint(tmp_path / "drafter", checkpoint.config, checkpoint.tensors)
        options["drafter_checkpoint"] = tmp_path / "drafter"
    with capture_logs() as logs:
        executor = assembly.build_executor(
            ExecutorConfig(
                device="cuda",
                drafter=drafter,
                enforce_eager=is_eager,
                max_draft_tokens=4,
                max_num_seqs=8,
                max_num_batched_tokens=64,
                max_context_tokens=SMALL.max_context_tokens,
                scheduler="in-process",
                policy="fixed(4)",  # by their price drafts on the host may not be worth it
                profile="quick",
                port=0,
                run_dir=tmp_path / "run",
                **options,
            )
        )
    try:
        counts = serve(executor, temperature)
        stats = executor.engine.stats()
    finally:
        executor.stop()
    assert counts == [40] * NUM_REQUESTS
    assert stats.num_failed_steps == 0
    assert stats.num_drafted_tokens > 0
    captures = [log for log in logs if log["event"] == "CUDA graphs captured"]
    assert len(captures) == (not is_eager)
    (cost,) = [log for log in logs if log["event"] == "step cost known"]
    assert len(cost["sizes"]) >= 3
