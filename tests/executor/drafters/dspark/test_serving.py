"""An executor whose options ask for the drafter."""

from __future__ import annotations

import threading

import pytest
import torch
from specsched_executor.config import ExecutorConfig
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.drafters.dspark import save_checkpoint
from specsched_executor.serve.assembly import build_executor
from specsched_executor.serve.cost import cost_message
from specsched_executor.serve.sizes import engine_config

from tests.executor.training.tiny import make_target

from .small import random_checkpoint


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    make_target(folder / "target")
    checkpoint = random_checkpoint(window=24)
    save_checkpoint(folder / "drafter", checkpoint.config, checkpoint.tensors)
    before = torch.get_num_threads()
    yield ExecutorConfig(
        model=folder / "target",
        drafter="dspark",
        drafter_checkpoint=folder / "drafter",
        max_draft_tokens=4,
        max_num_seqs=3,
        scheduler="in-process",
        profile="quick",
        num_threads=1,
    )
    torch.set_num_threads(before)


def test_it_serves_with_a_scheduler_that_knows_what_drafts_cost(config):
    executor = build_executor(config)
    try:
        message = cost_message(config, executor.loaded, executor.sizes)
        assert message.draft
        assert all(ms > 0 for point in message.draft for ms in point.ms)
        done = threading.Event()
        tokens: list[int] = []

        def sink(delta):
            tokens.extend(delta.token_ids)
            if delta.finish_reason is not None:
                done.set()

        sampling = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
        executor.engine.submit(GenerationRequest("a", tuple(range(5, 40)), sampling), sink)
        executor.start(on_failure=done.set)
        assert done.wait(60)
        stats = executor.engine.stats()
    finally:
        executor.stop()
    assert len(tokens) == 16
    assert stats.num_drafted_tokens > 0
    assert stats.num_failed_steps == 0


def test_measuring_longer_than_a_context_lasts_starts_a_new_one(config):
    """More drafts are measured than positions there are."""
    from specsched_executor.model import load_model
    from specsched_executor.serve.cost import _draft_run, _options
    from specsched_executor.serve.drafter import build_drafter

    loaded = load_model(config.model)
    sizes = engine_config(config, loaded.config)
    run = _draft_run(build_drafter(config, loaded, sizes), loaded, _options(config, loaded, sizes))
    for _ in range(200):
        run(2, config.max_draft_tokens)
