"""DeepSeek-V3.2 with random weights, served: scheduled through a sidecar, or not, alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from specsched_client import Client, Sampling

from tests.integration.processes import ExecutorProcess, start_executor, start_scheduler

pytestmark = pytest.mark.slow

MODEL = ("--load-format", "dummy", "--preset", "tiny")
SAMPLING = Sampling(temperature=0.0, max_tokens=64, ignore_eos=True)
# Longer than the 32 tokens that are attended to, and some repeat themselves for prompt lookup.
PROMPTS = ("abab" * 20, "counting 1 2 3 " * 6, "the cat sat", "xyz" * 30)


def answers(executor: ExecutorProcess) -> list[tuple[int, ...]]:
    """Of all prompts at once."""
    with Client(executor.target) as client, ThreadPoolExecutor(len(PROMPTS)) as pool:
        asked = pool.map(lambda prompt: client.generate(prompt, SAMPLING, timeout_s=240), PROMPTS)
        return [completion.token_ids for completion in asked]


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> list[tuple[int, ...]]:
    """Without drafts, so that nothing is scheduled."""
    run_dir = tmp_path_factory.mktemp("alone")
    with start_executor(run_dir, *MODEL, "--drafter", "none", profile=None) as executor:
        return answers(executor)


def test_scheduled_through_a_sidecar_it_says_the_same(tmp_path: Path, expected):
    with (
        start_scheduler(tmp_path),
        start_executor(tmp_path, *MODEL, "--drafter", "ngram") as executor,
    ):
        executor.wait_until_attached()
        assert answers(executor) == expected
        with Client(executor.target) as client:
            counters = client.step_counters().counters
            assert counters.num_planned_steps > 0
            assert counters.num_verified_tokens > 0
            assert counters.num_failed_steps == 0
            info = client.server_info()
        assert info.attention_backend == "sparse-mla-generic"
        assert info.block_size == 64
        chosen = executor.wait_for_event("attention chosen")
        assert (chosen["backend"], chosen["deep_gemm"]) == (
            "sparse-mla-generic",
            "no CUDA device is used",
        )


def test_with_scheduling_off_it_says_the_same(tmp_path: Path, expected):
    options = ("--drafter", "ngram", "--scheduler", "off", "--fallback", "fixed(7)")
    with start_executor(tmp_path, *MODEL, *options, profile=None) as executor:
        assert answers(executor) == expected
