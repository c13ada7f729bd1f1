"""Real scheduler and executor processes for tests.

    with start_scheduler(run_dir, policy="fixed(1)"), start_executor(run_dir) as executor:
        channel = grpc.insecure_channel(executor.target)

Every process is waited for by its health check, logs JSON lines that tests can wait for, and is
ended by its own pid. Nothing here sleeps and hopes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.forked import ForkedProgram, can_fork

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 60.0

# The smallest real set-up: room for a few short requests.
QUICK_EXECUTOR_OPTIONS = ("--max-num-seqs", "4", "--max-context-tokens", "512")


class ProcessFailedError(AssertionError):
    """A process ended, or did not do in time what the test waits for; carries its log."""


class ManagedProcess:
    """A child process whose stderr is read as JSON log lines. prefix: command that runs it."""

    def __init__(self, arguments: Sequence[str], prefix: Sequence[str] = ()) -> None:
        self.popen = _start(arguments, prefix)
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.terminate()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def log(self) -> str:
        with self._changed:
            return "\n".join(self._lines)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log lines so far whose event is `name`."""
        with self._changed:
            lines = list(self._lines)
        return [event for line in lines if (event := _parse(line)).get("event") == name]

    def wait_for_event(
        self, name: str, *, count: int = 1, timeout_s: float = START_TIMEOUT_S
    ) -> dict[str, Any]:
        """Wait until the event was logged `count` times; return that one."""
        deadline = time.monotonic() + timeout_s
        while len(events := self.events(name)) < count:
            if self.popen.poll() is not None and not self._reader.is_alive():
                raise ProcessFailedError(f"ended with {self.popen.returncode}:\n{self.log}")
            if time.monotonic() > deadline:
                raise ProcessFailedError(f"no {name!r} #{count} in {timeout_s} s:\n{self.log}")
            with self._changed:
                self._changed.wait(0.1)
        return events[count - 1]

    def kill(self) -> None:
        """kill -9 and wait."""
        self.popen.kill()
        self._reap()

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM and wait; returns the exit status. Kills what does not end in time."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        try:
            self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailedError(f"did not end within {timeout_s} s:\n{self.log}") from None
        self._reap()
        return int(self.popen.returncode)

    def _reap(self) -> None:
        self.popen.wait()
        self._reader.join()
        if self.popen.stderr is not None:
            self.popen.stderr.close()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def _wait_until_serving(self, target: str, timeout_s: float) -> None:
        with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as it:
            health = health_pb2_grpc.HealthStub(it)

            def serving() -> bool:
                if self.popen.poll() is not None:
                    raise ProcessFailedError(f"ended with {self.popen.returncode}:\n{self.log}")
                try:
                    reply = health.Check(health_pb2.HealthCheckRequest(), timeout=2)
                except grpc.RpcError:
                    return False
                return reply.status == health_pb2.HealthCheckResponse.SERVING

            try:
                wait_until(serving, timeout_s=timeout_s, interval_s=0.05)
            except TimeoutError:
                raise ProcessFailedError(f"not serving in {timeout_s} s:\n{self.log}") from None


def _start(
    arguments: Sequence[str], prefix: Sequence[str]
) -> subprocess.Popen[str] | ForkedProgram:
    if not prefix and can_fork():
        return ForkedProgram(arguments)
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


class SchedulerProcess(ManagedProcess):
    """`python -m specsched_scheduler`, or another module that takes its options."""

    def __init__(
        self,
        run_dir: Path,
        *options: str,
        name: str = "default",
        prefix: Sequence[str] = (),
        module: Sequence[str] = ("specsched_scheduler",),
    ) -> None:
        self.socket_path = run_dir / "schedulers" / f"{name}.sock"
        self.target = f"unix:{self.socket_path}"
        arguments = ("--run-dir", str(run_dir), "--name", name, "--log-format", "json")
        super().__init__([*module, *arguments, *options], prefix)

    def wait_until_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        self._wait_until_serving(self.target, timeout_s)


class ExecutorProcess(ManagedProcess):
    """`python -m specsched_executor` on a free port."""

    def __init__(self, run_dir: Path, *options: str, prefix: Sequence[str] = ()) -> None:
        self.port = 0
        arguments = ("--run-dir", str(run_dir), "--port", "0", "--log-format", "json")
        super().__init__(["specsched_executor", *arguments, *options], prefix)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wait_until_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        self.port = int(self.wait_for_event("serving", timeout_s=timeout_s)["port"])
        self._wait_until_serving(self.target, timeout_s)

    def wait_until_attached(self, *, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`-th attachment to a scheduler; returns its log line."""
        return self.wait_for_event("attached to scheduler", count=count)


def start_scheduler(
    run_dir: Path, *options: str, policy: str | None = None, name: str = "default"
) -> SchedulerProcess:
    """Start a scheduler and wait until it serves."""
    policy_options = ("--policy", policy) if policy else ()
    process = SchedulerProcess(run_dir, *policy_options, *options, name=name)
    _wait_or_kill(process)
    return process


def start_executor(run_dir: Path, *options: str, profile: str | None = "quick") -> ExecutorProcess:
    """Start an executor of SmolLM2 with quick options, overridden by `options`; wait for it.

    profile: None where nobody drafts or decides, since the option is refused there.
    """
    profile_options = ("--profile", profile) if profile else ()
    process = ExecutorProcess(run_dir, *QUICK_EXECUTOR_OPTIONS, *profile_options, *options)
    _wait_or_kill(process)
    return process


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float = 60.0, interval_s: float = 0.02
) -> None:
    """Poll until `condition` holds; raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true within {timeout_s} s")
        time.sleep(interval_s)


def _wait_or_kill(process: SchedulerProcess | ExecutorProcess) -> None:
    try:
        process.wait_until_serving()
    except BaseException:
        process.kill()
        raise


def _parse(line: str) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
