"""`specsched bench serve` compares policies in one session of real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from specsched_client import SchedulerClient

from tests.integration.processes import start_executor, start_scheduler
from tests.integration.tiny_checkpoint import write_tiny_checkpoint

COMMAND = Path(sys.executable).with_name("specsched")


def test_policies_are_compared_in_one_session(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "tiny")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"turns": [text * 6]}) + "\n" for text in ("abcd", "xy", "12 "))
    )
    run_dir = tmp_path / "run"
    with (
        start_scheduler(run_dir, policy="threshold(0.5)") as scheduler,
        start_executor(run_dir, "--model", str(model)) as executor,
    ):
        executor.wait_until_attached()
        done = subprocess.run(
            [
                COMMAND, "bench", "serve", "--prompts", prompts, "--target", executor.target,
                "--run-dir", run_dir, "--policy", "off", "--policy", "fixed(3)",
                "--concurrency", "2", "--repeats", "2", "--max-tokens", "24",
                "--temperature", "0", "--ignore-eos", "--json",
            ],
            capture_output=True,
            text=True,
            check=True,
        )  # fmt: skip
        with SchedulerClient(scheduler.target) as client:
            assert client.status().policy.name == "threshold"
    report = json.loads(done.stdout)
    (result,) = report["results"]
    off, fixed = result["variants"]["off"], result["variants"]["fixed(3)"]
    assert result["baseline"] == "off"
    for variant in (off, fixed):
        assert variant["summary"]["num_output_tokens"] == 2 * 3 * 24
        assert variant["summary"]["num_failed_requests"] == 0
    assert off["summary"]["counted"]["num_verified_tokens"] == 0
    assert off["summary"]["accepted_per_step"] == 0
    counted = fixed["summary"]["counted"]
    assert 0 < counted["num_verified_tokens"] <= counted["num_scheduled_tokens"]
    # Both ways of counting accepted drafts agree: the executor's and that of the answers.
    accepted = sum(r["num_accepted_tokens"] for one in fixed["rounds"] for r in one["requests"])
    assert counted["num_accepted_tokens"] >= accepted > 0
    assert counted["num_planned_steps"] > 0
    assert fixed["summary"]["plan_latency"]["p50_us"] > 0
    ratio = fixed["ratio_to_baseline"]
    assert ratio["num_pairs"] == 2
    assert ratio["low"] < ratio["mean"] < ratio["high"]
    assert report["scheduler"]["drafter"] == "ngram"
    assert report["executors"][0]["schedulers"] == ["default (TRANSPORT_SHARED_MEMORY)"]
