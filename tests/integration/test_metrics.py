"""Metrics of two real processes at work: they agree with what the processes say over gRPC.

The model is tiny and random.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from specsched_client import Client, Sampling
from specsched_executor.telemetry import CATALOGUE as EXECUTOR
from specsched_protocol.v1 import executor_pb2
from specsched_protocol.v1.executor_pb2_grpc import ExecutorServiceStub
from specsched_scheduler.telemetry import CATALOGUE as SCHEDULER

from tests.integration.processes import (
    ExecutorProcess,
    SchedulerProcess,
    start_executor,
    start_scheduler,
    wait_until,
)
from tests.integration.tiny_checkpoint import write_tiny_checkpoint
from tests.telemetry.promtool import fired

PROMPT = "One, two, three, four. One, two, three, four. One, two,"
NUM_REQUESTS, NUM_TOKENS = 3, 24

Values = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def processes(tmp_path_factory) -> Iterator[tuple[SchedulerProcess, ExecutorProcess]]:
    run_dir = tmp_path_factory.mktemp("metrics")
    run_dir.chmod(0o700)
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    with ExitStack() as stack:
        scheduler = stack.enter_context(start_scheduler(run_dir))
        executor = stack.enter_context(
            start_executor(run_dir, "--model", str(model), "--probe-address", "127.0.0.1:0")
        )
        executor.wait_until_attached()
        yield scheduler, executor


def address(process: SchedulerProcess | ExecutorProcess, option: str = "http_address") -> str:
    (listener,) = [each for each in process.events("http") if each["option"] == option]
    return str(listener["address"])


def fetch(at: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{at}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def is_ready(at: str) -> bool:
    """A busy machine may miss the second that a probe has."""
    try:
        return fetch(at, "/readyz") == "ready\n"
    except urllib.error.HTTPError:
        return False


def values(text: str) -> Values:
    """(name, labels that are not common to all) -> value."""
    common = {"model_name", "engine", "scheduler", "slot"}
    return {
        (sample.name, *(v for k, v in sample.labels.items() if k not in common)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_both_are_ready_and_answer_everywhere(processes):
    scheduler, executor = processes
    for at in (address(scheduler), address(executor), address(executor, "probe_address")):
        assert fetch(at, "/livez") == "alive\n"
        wait_until(lambda at=at: is_ready(at))
        assert "process_cpu_seconds_total" in fetch(at)


def counts_steps_alike(executor) -> bool:
    found = values(fetch(address(executor)))
    return found["specsched_step_seconds_count",] == found["specsched_steps_total",]


def test_counters_agree_with_grpc_and_with_each_other(processes):
    scheduler, executor = processes
    before = values(fetch(address(executor)))
    with Client(executor.target) as client:
        for seed in range(NUM_REQUESTS):
            client.generate(
                PROMPT, Sampling(max_tokens=NUM_TOKENS, ignore_eos=True, seed=seed, temperature=0)
            )
    wait_until(lambda: counts_steps_alike(executor))  # an answer is out before its step is counted
    with grpc.insecure_channel(executor.target) as channel:
        told = ExecutorServiceStub(channel).GetStepCounters(
            executor_pb2.GetStepCountersRequest(), timeout=10
        )
    text = fetch(address(executor))
    found, counters = values(text), told.counters
    assert found["vllm:generation_tokens_total",] == counters.num_output_tokens
    assert found["specsched_drafted_tokens_total",] == counters.num_drafted_tokens
    assert found["specsched_scheduled_tokens_total",] == counters.num_scheduled_tokens
    assert found["vllm:spec_decode_num_draft_tokens_total",] == counters.num_verified_tokens
    assert found["vllm:spec_decode_num_accepted_tokens_total",] == counters.num_accepted_tokens
    assert found["specsched_steps_total",] == counters.num_steps
    assert found["specsched_step_seconds_count",] == counters.num_steps
    ended = found["vllm:request_success_total", "length"]
    assert ended - before["vllm:request_success_total", "length"] == NUM_REQUESTS
    assert found["vllm:time_to_first_token_seconds_count",] == NUM_REQUESTS
    assert found["vllm:e2e_request_latency_seconds_count",] == NUM_REQUESTS
    families = {family.name for family in text_string_to_metric_families(text)}
    assert {metric.family_name for metric in EXECUTOR} <= families
    wait_until(lambda: learned_all(scheduler, counters.num_planned_steps))


def learned_all(scheduler: SchedulerProcess, num_planned: int) -> bool:
    """The scheduler decided every step that was planned, and has read the reports of them."""
    text = fetch(address(scheduler))
    families = {family.name for family in text_string_to_metric_families(text)}
    assert {metric.family_name for metric in SCHEDULER} <= families
    found = values(text)
    decided = found["specsched_decisions_total",] >= num_planned
    return decided and found["specsched_reports_total",] >= num_planned


def test_a_real_kill_fires_the_alert_of_a_crash(processes):
    """The last test: it takes the scheduler away."""
    scheduler, executor = processes
    at = address(executor)
    before = fetch(at)
    assert fired(before, before) == set()
    scheduler.kill()
    wait_until(lambda: values(fetch(at))["specsched_detaches_total", "crashed"] == 1)
    wait_until(lambda: values(fetch(at))["specsched_scheduler_followed",] == 0)
    alerts = {"SpecschedSchedulerCrashed", "SpecschedNoScheduler"}
    assert fired(before, fetch(at), at="5m", goes_on=False) == alerts
    wait_until(lambda: is_ready(at))
