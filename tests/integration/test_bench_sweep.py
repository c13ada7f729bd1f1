"""`specsched bench sweep` on real processes: interrupted, resumed, and compared afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from specsched_client import SchedulerClient

from tests.integration.processes import (
    ExecutorProcess,
    SchedulerProcess,
    start_executor,
    start_scheduler,
    wait_until,
)
from tests.integration.tiny_checkpoint import write_tiny_checkpoint

COMMAND = str(Path(sys.executable).with_name("specsched"))
START_TIMEOUT_S = 240.0


NUM_TOKENS, NUM_REPEATS = 120, 8
"""Of an answer, and so many repeats that a signal after the first meets a sweep that goes on."""


@pytest.fixture(scope="module")
def processes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[SchedulerProcess, ExecutorProcess]]:
    folder = tmp_path_factory.mktemp("sweep")
    run_dir, model = folder / "run", write_tiny_checkpoint(folder / "tiny")
    with (
        start_scheduler(run_dir, policy="threshold(0.5)") as scheduler,
        start_executor(run_dir, "--model", str(model), "--max-draft-tokens", "3") as executor,
    ):
        executor.wait_until_attached()
        yield scheduler, executor


def policy_in_force(scheduler: SchedulerProcess) -> str:
    with SchedulerClient(scheduler.target) as client:
        return client.status().policy.name


def sweep_command(
    scheduler: SchedulerProcess,
    executor: ExecutorProcess,
    folder: Path,
    num_repeats: int,
    *options: str,
) -> list[str]:
    prompts = folder.parent / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"turns": [text]}) + "\n" for text in ("Count to 9.", "Say a, b, c."))
    )
    return [
        COMMAND, "bench", "sweep", "--prompts", str(prompts), "--output", str(folder),
        "--target", executor.target, "--scheduler", scheduler.target,
        "--concurrency", "2", "--fixed", "3", "--min-repeats", str(num_repeats),
        "--max-repeats", str(num_repeats),
        "--max-tokens", str(NUM_TOKENS), "--ignore-eos", "--json", *options,
    ]  # fmt: skip


@pytest.mark.timeout(1200)
def test_sweep_goes_on_after_an_interrupt(
    processes: tuple[SchedulerProcess, ExecutorProcess], tmp_path: Path
) -> None:
    scheduler, executor = processes
    folder = tmp_path / "sweep"
    options = ("--num-requests", "2", "--every-setting")
    command = sweep_command(scheduler, executor, folder, NUM_REPEATS, *options)
    state = folder / "state.jsonl"
    interrupted = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        # The first line says what is swept; others follow as repeats end.
        wait_until(
            lambda: state.exists() and state.read_bytes().count(b"\n") >= 2,
            timeout_s=START_TIMEOUT_S,
        )
        # Not SIGINT: workers of pytest-xdist ignore it, and their children inherit that.
        interrupted.send_signal(signal.SIGTERM)
        _, error = interrupted.communicate(timeout=START_TIMEOUT_S)
    finally:
        interrupted.kill()
        interrupted.wait()
    assert interrupted.returncode == 130, error
    assert b"the same command goes on" in error
    assert policy_in_force(scheduler) == "threshold"
    kept = state.read_bytes().splitlines()

    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert policy_in_force(scheduler) == "threshold"
    assert state.read_bytes().splitlines()[: len(kept)] == kept
    assert state.read_bytes().count(b"\n") == 1 + NUM_REPEATS
    document = json.loads(done.stdout)
    assert document == json.loads((folder / "sweep.json").read_text())
    (result,) = document["results"]
    variants = result["variants"]
    assert list(variants) == ["off", "fixed(3)", "throughput"]
    for each in variants.values():
        assert len(each["rounds"]) == NUM_REPEATS
        assert each["summary"]["num_output_tokens"] == NUM_REPEATS * 2 * NUM_TOKENS
    verdict = result["verdict"]
    assert set(verdict["scheduled_to_static"]) == {"off", "fixed(3)"}
    assert verdict["num_repeats"] == NUM_REPEATS
    assert verdict["best_static"]["scheduled_to_best"]["num_pairs"] == NUM_REPEATS

    compared = subprocess.run(
        [COMMAND, "bench", "compare", str(folder / "sweep.json"), "--figures", str(folder)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "throughput" in compared.stdout
    assert (folder / "budget.svg").exists()


ROUND_S = 0.3


@pytest.mark.timeout(1200)
def test_steady_rounds_are_measured_as_long_as_asked(
    processes: tuple[SchedulerProcess, ExecutorProcess], tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    options = ("--round-seconds", str(ROUND_S), "--settle-seconds", "0.1", "--clients", "2")
    command = sweep_command(*processes, folder, 4, *options)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (result,) = json.loads(done.stdout)["results"]
    for each in result["variants"].values():
        assert [one["elapsed_s"] for one in each["rounds"]] == pytest.approx([ROUND_S] * 4)
        assert all(one["num_output_tokens"] > 0 for one in each["rounds"])
    repeats = list(map(json.loads, (folder / "state.jsonl").read_bytes().splitlines()[1:]))
    for repeat in repeats:
        begun = [one["window"]["num_requests"] for one in repeat["rounds"].values()]
        assert repeat["num_requests"] == max(begun) >= 2
