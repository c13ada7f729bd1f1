"""A real executor with schedulers over mutual TLS: steps on the stream; strangers are refused.

The model is tiny and random.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from specsched_client import Client, Sampling, SchedulerClient
from specsched_protocol.tcp import TlsFiles
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests.certificates import Authority
from tests.integration.processes import (
    ExecutorProcess,
    SchedulerProcess,
    start_executor,
    start_scheduler,
    wait_until,
)
from tests.integration.tiny_checkpoint import write_tiny_checkpoint

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0.0, max_tokens=48, ignore_eos=True)
QUESTION = "one two three one two three one two"


@dataclass(frozen=True)
class Rig:
    directory: Path
    executor: ExecutorProcess
    friend: SchedulerProcess
    stranger: SchedulerProcess
    friend_files: TlsFiles
    friend_target: str
    stranger_target: str


def _scheduler(directory: Path, name: str, files: TlsFiles, port: int = 0) -> SchedulerProcess:
    options = ["--listen", f"127.0.0.1:{port}", "--tls-client-ca", str(files.ca)]
    options += ["--tls-cert", str(files.certificate), "--tls-key", str(files.key)]
    return start_scheduler(directory / name, *options)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("run")
    ours, theirs = Authority(directory / "ours"), Authority(directory / "theirs")
    files = ours.issue("executor")
    with ExitStack() as stack:
        # The stranger knows our authority but is not known by it.
        stranger = stack.enter_context(
            _scheduler(directory, "stranger", theirs.issue("scheduler", trusting=ours))
        )
        friend_files = ours.issue("scheduler")
        friend = stack.enter_context(_scheduler(directory, "friend", friend_files))
        targets = [
            f"localhost:{each.events('listening')[0]['tcp_port']}" for each in (friend, stranger)
        ]
        model = write_tiny_checkpoint(directory / "tiny")
        options = ["--model", str(model), "--transport", "inline"]
        for target in targets:
            options += ["--scheduler-target", target]
        options += ["--scheduler-tls-ca", str(files.ca)]
        options += ["--scheduler-tls-cert", str(files.certificate)]
        options += ["--scheduler-tls-key", str(files.key)]
        executor = stack.enter_context(start_executor(directory / "executor", *options))
        yield Rig(directory, executor, friend, stranger, friend_files, *targets)


def test_plans_come_on_the_stream_and_every_end_says_so(rig: Rig) -> None:
    attached = rig.executor.wait_until_attached()
    assert (attached["scheduler"], attached["transport"]) == (rig.friend_target, "inline")
    with Client(rig.executor.target) as client:

        def planned() -> bool:
            """A busy machine may have the few plans of one answer come late."""
            client.generate(QUESTION, GREEDY, timeout_s=120)
            return client.step_counters().counters.num_planned_steps > 0

        wait_until(planned, timeout_s=150.0)
        (scheduler,) = client.schedulers().schedulers
    assert (scheduler.target, scheduler.active) == (rig.friend_target, True)
    assert scheduler.transport == pb.TRANSPORT_INLINE
    assert "the executor offers none" in scheduler.transport_reason
    assert rig.friend.events("executor attached")[0]["transport"] == "inline"


def test_status_shows_the_transport(rig: Rig) -> None:
    rig.executor.wait_until_attached()
    command = [str(Path(sys.executable).with_name("specsched")), "status", "--json"]
    command += ["--target", rig.executor.target, "--scheduler", str(rig.friend.socket_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    report = json.loads(done.stdout)
    (seen_by_executor,) = report["executor"]["schedulers"]["schedulers"]
    assert seen_by_executor["transport"] == "TRANSPORT_INLINE"
    (status,) = report["schedulers"].values()
    assert status["attachments"][0]["transport"] == "TRANSPORT_INLINE"


def test_scheduler_of_another_authority_is_refused_and_named(rig: Rig) -> None:
    refusal = rig.executor.wait_for_event("cannot attach")
    assert refusal["scheduler"] == rig.stranger_target
    assert "CERTIFICATE_VERIFY_FAILED" in refusal["reason"]
    assert rig.stranger.events("executor attached") == []


def test_reports_travel_too(rig: Rig) -> None:
    rig.executor.wait_until_attached()
    with Client(rig.executor.target) as client:
        client.generate(QUESTION, GREEDY, timeout_s=120)
    with SchedulerClient(rig.friend.target) as scheduler:

        def all_told() -> bool:
            (attachment,) = scheduler.status().attachments
            counters = attachment.counters
            return 0 < counters.num_decisions <= counters.num_reports + 1

        wait_until(all_told)
        (attachment,) = scheduler.status().attachments
    assert attachment.counters.num_invalid_requests == 0
    assert attachment.counters.num_lost_reports == 0


def test_restarted_scheduler_is_attached_again(rig: Rig) -> None:
    rig.executor.wait_until_attached()
    port = int(rig.friend_target.rpartition(":")[2])
    rig.friend.kill()
    rig.executor.wait_for_event("lost scheduler")
    with _scheduler(rig.directory, "friend", rig.friend_files, port):
        rig.executor.wait_until_attached(count=2)
