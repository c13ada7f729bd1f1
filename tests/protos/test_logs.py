"""Logs as a process writes them: form, level, lines of libraries, samples of what happens often."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest
from specsched_protocol.logs import LogSampler

from tests.terminal import shown_on_terminal

SCRIPT = """
import asyncio, logging, sys, warnings
import structlog
from specsched_protocol.logs import configure_logging
configure_logging(sys.argv[1], sys.argv[2])
log = structlog.get_logger("ours")
log.debug("fine detail")
structlog.contextvars.bind_contextvars(request_id="a", step_id=7)
log.info("told", number=3)
logging.getLogger("grpc._cython").info("library detail")
logging.getLogger("grpc._cython").warning("library %s", "warning")
warnings.warn("old habit")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
    logging.getLogger("asyncio").exception("also failed")
"""


def output(level: str = "info", log_format: str = "auto") -> list[dict[str, object]]:
    """The lines of a process whose stderr is a pipe."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, level, log_format],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_away_from_a_terminal_every_line_is_json_libraries_too() -> None:
    lines = output()
    assert [line["event"] for line in lines[:2]] == ["told", "library warning"]
    assert "old habit" in str(lines[2]["event"])
    assert [line["event"] for line in lines[3:]] == ["failed", "also failed"]
    for line in lines:
        assert line["level"] in {"info", "warning", "error"}
        assert str(line["timestamp"]).endswith("Z")
    told, library = lines[0], lines[1]
    assert (told["request_id"], told["step_id"], told["number"]) == ("a", 7, 3)
    assert (library["logger"], library["request_id"]) == ("grpc._cython", "a")
    assert all("ZeroDivisionError" in str(line["exception"]) for line in lines[3:])


def test_levels_hold_for_libraries_from_warning_up() -> None:
    assert "fine detail" in [line["event"] for line in output("debug")]
    assert "library detail" not in [line["event"] for line in output("debug")]
    assert [line["event"] for line in output("error")] == ["failed", "also failed"]


def test_on_a_terminal_lines_are_for_people() -> None:
    text = shown_on_terminal([sys.executable, "-c", SCRIPT, "info", "auto"], "stderr")
    assert "told" in text
    assert "library warning" in text
    assert "\x1b[" in text
    assert '{"' not in text


def test_console_lines_in_a_pipe_have_no_colours() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "info", "console"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "told" in done.stderr
    assert "\x1b[" not in done.stderr


GOODBYE = """
import asyncio, importlib, sys
importlib.import_module(sys.argv[1])
import grpc.aio

async def main():
    has_come = asyncio.Event()
    async def wait(request, context):
        has_come.set()
        await asyncio.sleep(60)
    calls = {"C": grpc.unary_unary_rpc_method_handler(wait)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("a.B", calls)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = asyncio.ensure_future(channel.unary_unary("/a.B/C")(b""))
        await has_come.wait()
        await server.stop(None)
        try:
            await call
        except grpc.aio.AioRpcError as error:
            print(error.code().name)

asyncio.run(main())
"""


@pytest.mark.parametrize("package", ["specsched_executor", "specsched_scheduler"])
def test_the_core_of_grpc_does_not_write_past_the_log(package: str) -> None:
    """Its own way of telling that a peer closed a connection is a plain line on stderr."""
    environ = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    done = subprocess.run(
        [sys.executable, "-c", GOODBYE, package],
        capture_output=True,
        text=True,
        check=True,
        env=environ,
    )
    assert done.stdout in {"UNAVAILABLE\n", "CANCELLED\n"}
    assert done.stderr == ""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_goes_on_is_told_ever_more_seldom_and_nothing_is_lost(clock: Clock) -> None:
    sampler = LogSampler(1.0, 60.0, clock=clock)
    told = []
    for tick in range(6000):  # ten a second, ten minutes
        clock.now = tick / 10
        count = sampler.admit("late")
        if count:
            told.append((clock.now, count))
    times = [at for at, _ in told]
    assert times[:4] == [0.0, 1.0, 3.0, 7.0]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) == pytest.approx(60.0)
    assert len(told) < 20
    assert sum(count for _, count in told) == 10 * round(times[-1]) + 1


def test_kinds_are_apart_and_a_quiet_time_begins_anew(clock: Clock) -> None:
    sampler = LogSampler(1.0, 60.0, clock=clock)
    assert sampler.admit("late") == 1
    assert sampler.admit("late") is None
    assert sampler.admit("torn") == 1
    clock.now = 100.0
    assert sampler.admit("late") == 2  # the untold one is not forgotten
    clock.now = 101.5
    assert sampler.admit("late") == 1
