"""Real schedulers beside one executor: shadowed, promoted, drained, killed, stopped, broken.

Requests are in flight all the time, and every greedy answer must be that of an executor without
drafts.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from specsched_client import Client, Sampling, SchedulerClient
from specsched_protocol.v1 import executor_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests.integration.processes import (
    ExecutorProcess,
    SchedulerProcess,
    start_executor,
    wait_until,
)
from tests.integration.tiny_checkpoint import write_tiny_checkpoint

pytestmark = pytest.mark.slow

SAMPLING = Sampling(temperature=0.0, max_tokens=64, ignore_eos=True)
# A random model repeats itself, so prompt lookup always has something to propose.
PROMPTS = ("abab", "counting 1 2 3", "the cat sat", "xyz" * 8)
TIMEOUT_S = 60.0
# A busy machine stops a process for a second now and then: that must not look like a failure.
FAILOVER_AFTER_MS = "4000"


FAULTY = "tests.integration.faulty_scheduler"


@dataclass
class Rig:
    """One executor, whatever schedulers a test starts, and the answers that are right."""

    run_dir: Path
    executor: ExecutorProcess
    client: Client
    expected: dict[str, tuple[int, ...]]
    schedulers: list[SchedulerProcess] = field(default_factory=list)

    def start(self, **policies: str) -> list[SchedulerProcess]:
        """Start schedulers by name and policy; wait until all are attached."""
        options = {name: ("--policy", policy) for name, policy in policies.items()}
        return self._start(
            [SchedulerProcess(self.run_dir, *options[name], name=name) for name in policies]
        )

    def start_faulty(self, name: str, fault: str) -> SchedulerProcess:
        """One that breaks on SIGUSR1."""
        process = SchedulerProcess(self.run_dir, name=name, module=(FAULTY, fault))
        return self._start([process])[0]

    def _start(self, started: list[SchedulerProcess]) -> list[SchedulerProcess]:
        self.schedulers += started
        for scheduler in started:
            scheduler.wait_until_serving()
            wait_until(lambda: scheduler.target in self._targets(), timeout_s=TIMEOUT_S)  # noqa: B023
        return started

    def _targets(self) -> set[str]:
        return {each.target for each in self.answer().schedulers}

    def ask(self, prompt: str) -> tuple[int, ...]:
        return self.client.generate(prompt, SAMPLING, timeout_s=120).token_ids

    def answer(self) -> executor_pb2.ListSchedulersResponse:
        return self.client.schedulers()

    def lanes(self) -> dict[str, executor_pb2.AttachedScheduler]:
        return {each.name: each for each in self.answer().schedulers}

    def active(self) -> str:
        return next((name for name, lane in self.lanes().items() if lane.active), "")

    def switches(self, reason: str) -> int:
        return self.answer().num_switches[reason]

    def fallbacks(self, reason: str) -> int:
        return self.client.step_counters().counters.num_fallback_steps[reason]

    @contextmanager
    def load(self) -> Iterator[None]:
        """Keeps requests in flight inside the context; each answer must be the right one."""
        stop = threading.Event()

        def keep_asking(prompt: str) -> int:
            num_answers = 0
            while not stop.is_set():
                assert self.ask(prompt) == self.expected[prompt], prompt
                num_answers += 1
            return num_answers

        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            askers = [pool.submit(keep_asking, prompt) for prompt in PROMPTS]
            try:
                yield
            finally:
                stop.set()
            assert all(asker.result() > 0 for asker in askers)
        counters = self.client.step_counters().counters
        assert (counters.num_failed_requests, counters.num_failed_steps) == (0, 0)


def promote(scheduler: SchedulerProcess) -> pb.LaneReply:
    with SchedulerClient(scheduler.target) as operator:
        (change,) = operator.promote(timeout_s=30).executors
    return change.reply


def until(condition: Callable[[], bool]) -> None:
    wait_until(condition, timeout_s=TIMEOUT_S)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def shared_rig(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Rig]:
    options = ("--model", str(model))
    plain_dir, run_dir = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("run")
    with (
        start_executor(plain_dir, *options, "--drafter", "none", profile=None) as plain,
        Client(plain.target) as client,
    ):
        expected = {
            prompt: client.generate(prompt, SAMPLING, timeout_s=120).token_ids for prompt in PROMPTS
        }
    with (
        start_executor(
            run_dir, *options, "--drafter", "ngram", "--failover-after-ms", FAILOVER_AFTER_MS
        ) as executor,
        Client(executor.target) as client,
    ):
        yield Rig(run_dir, executor, client, expected)


@pytest.fixture
def rig(shared_rig: Rig) -> Iterator[Rig]:
    """Without a scheduler at the beginning and at the end of each test."""
    yield shared_rig
    for scheduler in shared_rig.schedulers:
        scheduler.popen.send_signal(signal.SIGCONT)
        scheduler.kill()
    shared_rig.schedulers.clear()
    until(lambda: not shared_rig.lanes())


def test_shadow_is_compared_promoted_rolled_back_and_takes_over_a_drain(rig: Rig) -> None:
    blue, green = rig.start(blue="fixed(7)", green="fixed(1)")
    assert promote(blue).done
    before = rig.fallbacks("no_scheduler")
    with rig.load(), SchedulerClient(green.target) as operator:
        until(lambda: rig.lanes()["green"].comparison.num_steps > 20)
        lanes = rig.lanes()
        compared = lanes["green"].comparison
        assert lanes["green"].role == pb.LANE_ROLE_SHADOW
        assert lanes["blue"].role == pb.LANE_ROLE_ACTIVE
        # One draft per request against seven.
        assert compared.mean_budget_difference < 0
        assert compared.mean_absolute_budget_difference >= -compared.mean_budget_difference
        assert compared.mean_expected_tokens < compared.mean_active_expected_tokens
        assert compared.mean_regret_tokens >= 0
        assert compared.num_sound_decisions > 20

        reply = promote(green)
        assert reply.done, reply
        assert (reply.previous_scheduler, reply.active_scheduler) == ("blue", "green")
        assert rig.active() == "green"
        until(lambda: _role_told(operator) == (pb.LANE_ROLE_ACTIVE, "green"))
        assert promote(blue).done
        assert rig.active() == "blue"
        until(lambda: _role_told(operator) == (pb.LANE_ROLE_SHADOW, "blue"))

        num_drained = rig.switches("drained")
        assert blue.terminate() == 0
        assert rig.active() == "green"
        assert rig.switches("drained") == num_drained + 1
        assert blue.events("drained")[-1]["successor"] == "green"
    # The switches fell between two steps: at none was nobody active.
    assert rig.fallbacks("no_scheduler") == before


def _role_told(operator: SchedulerClient) -> tuple[int, str]:
    (attachment,) = operator.status().attachments
    return attachment.lane_status.role, attachment.lane_status.active_scheduler


def test_shadow_takes_over_from_the_dead_and_election_outlives_all_of_them(rig: Rig) -> None:
    blue, green = rig.start(blue="fixed(7)", green="fixed(1)")
    assert promote(blue).done
    epoch, num_lost = rig.lanes()["blue"].epoch, rig.switches("lost")
    with rig.load():
        blue.kill()
        until(lambda: rig.active() == "green")
        assert rig.switches("lost") == num_lost + 1
        (blue,) = rig.start(blue="fixed(7)")
        assert rig.active() == "green"  # one that crashed does not take over again by itself
        assert rig.lanes()["blue"].epoch > epoch

        blue.kill()
        green.kill()
        until(lambda: not rig.lanes())
        before = rig.fallbacks("no_scheduler")
        until(lambda: rig.fallbacks("no_scheduler") > before)
        rig.start(blue="fixed(7)")
        assert rig.active() == "blue"  # better than nobody
        assert rig.answer().elected_scheduler == "green"
        rig.start(green="fixed(1)")
        until(lambda: rig.active() == "green")
        assert rig.switches("returned") > 0


def shared_descriptors(pid: int) -> Iterator[tuple[str, bool]]:
    """Memory, events and sockets of a process, and whether each is closed on exec."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            what = str(descriptor.readlink())
            info = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text()
            flags = next(line for line in info.splitlines() if line.startswith("flags:"))
            if what.startswith(("/memfd:", "anon_inode:[eventfd]", "socket:")):
                yield what, bool(int(flags.split()[1], 8) & os.O_CLOEXEC)


def test_no_descriptor_outlives_an_exec(rig: Rig) -> None:
    (blue,) = rig.start(blue="fixed(7)")
    for pid in (blue.pid, rig.executor.pid):
        found = list(shared_descriptors(pid))
        assert len(found) > 3
        assert [what for what, is_closed in found if not is_closed] == []


def test_stopped_scheduler_is_given_up_and_may_come_back_as_a_shadow(rig: Rig) -> None:
    blue, _ = rig.start(blue="fixed(7)", green="fixed(1)")
    assert promote(blue).done
    num_before, num_late = rig.switches("unresponsive"), rig.fallbacks("late")
    with rig.load():
        until(lambda: rig.lanes()["green"].comparison.num_sound_decisions > 20)
        blue.popen.send_signal(signal.SIGSTOP)
        until(lambda: rig.active() == "green")
        assert rig.lanes()["blue"].role == pb.LANE_ROLE_SUSPENDED
        assert rig.switches("unresponsive") == num_before + 1
        assert rig.fallbacks("late") > num_late  # fallback first, failover then
        blue.popen.send_signal(signal.SIGCONT)
        until(lambda: rig.lanes()["blue"].role == pb.LANE_ROLE_SHADOW)
        assert rig.active() == "green"


@pytest.mark.parametrize(
    ("fault", "switched_for", "fallback"),
    [
        ("hang", "livelocked", "late"),
        ("nan", "garbage", "impossible"),
        ("epoch", "garbage", "wrong_epoch"),
    ],
)
def test_broken_scheduler_leads_to_fallback_then_failover(
    rig: Rig, fault: str, switched_for: str, fallback: str
) -> None:
    broken = rig.start_faulty("broken", fault)
    rig.start(green="fixed(1)")
    assert promote(broken).done
    num_switches = rig.switches(switched_for)
    with rig.load():
        until(lambda: rig.lanes()["green"].comparison.num_sound_decisions > 20)
        assert rig.active() == "broken"
        broken.popen.send_signal(signal.SIGUSR1)
        until(lambda: rig.active() == "green")
    assert rig.switches(switched_for) == num_switches + 1
    assert rig.lanes()["broken"].role == pb.LANE_ROLE_SUSPENDED
    assert rig.lanes()["broken"].given_up_for == switched_for
    assert broken.wait_for_event("given up")["reason"] == switched_for
    assert rig.lanes()["broken"].comparison.num_faults[fallback] > 0
