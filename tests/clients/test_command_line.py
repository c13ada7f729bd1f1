"""`specsched` as a user meets it: output, one-line errors and exit codes."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from specsched_client.cli import _plugins
from specsched_protocol.run_dir import RunDir
from specsched_protocol.start_marks import marked_as_starting
from specsched_protocol.v1 import scheduler_pb2

from tests.clients.conftest import FakeScheduler, Run
from tests.executor.gateway.fakes import (
    AnsweringEngine,
    FakeEngine,
    WordTokenizer,
    serving_in_thread,
)
from tests.terminal import shown_on_terminal

ANSWER = "hello world good bye"
NOBODY = "127.0.0.1:1"


# ===================== generate =====================


def test_one_prompt_prints_its_text_and_nothing_else(run: Run, target: str) -> None:
    assert run("generate", "hello", "--target", target) == (0, ANSWER + "\n", "")


def test_several_prompts_are_told_apart_and_keep_their_order(run: Run, target: str) -> None:
    code, out, _ = run("generate", "hello", "world", "--target", target, "--raw")
    assert (code, out) == (0, f"--- hello\n{ANSWER}\n--- world\n{ANSWER}\n")


def test_json_has_an_object_a_line(run: Run, target: str) -> None:
    code, out, _ = run("generate", "hello", "--target", target, "--json", "--max-tokens", "2")
    (answer,) = map(json.loads, out.splitlines())
    assert code == 0
    assert answer.pop("seconds") >= 0
    assert answer.pop("request_id")
    assert answer == {
        "index": 0,
        "output_index": 0,
        "prompt": "hello",
        "text": "hello world",
        "finish_reason": "length",
        "matched_stop": None,
        "token_ids": [3, 4],
        "num_prompt_tokens": 3,
        "num_output_tokens": 2,
        "num_draft_tokens": 4,
        "num_accepted_tokens": 3,
    }


def test_options_reach_the_engine(run: Run, target: str, engine: AnsweringEngine) -> None:
    options = "--temperature 0 --top-k 4 --top-p 0.5 --seed 9 --max-tokens 3 --ignore-eos"
    run("generate", "hello", "--target", target, *options.split(), "--stop", "x", "--stop", "y z")
    (request,) = engine.requests.values()
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.0, 4, 0.5)
    assert (sampling.seed, sampling.max_tokens, sampling.ignore_eos) == (9, 3, True)
    assert sampling.stop == ("x", "y z")


def test_chat_uses_the_template_and_raw_does_not(
    run: Run, target: str, engine: AnsweringEngine
) -> None:
    run("generate", "hello", "--target", target)
    run("generate", "hello", "--target", target, "--raw")
    run("generate", "hello", "--target", target, "--system", "good")
    prompts = [request.prompt_token_ids for request in engine.requests.values()]
    assert prompts == [(1, 3, 2), (3,), (0, 5, 1, 3, 2)]


def test_a_prompt_comes_from_stdin(
    run: Run, target: str, engine: AnsweringEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.write(write, b"good bye")
    os.close(write)
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        run("generate", "-", "--target", target, "--raw")
    (request,) = engine.requests.values()
    assert request.prompt_token_ids == (5, 6)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["hello", "--temperature", "-1"], "temperature = -1.0"),
        (["hello", "--top-p", "0"], "top_p = 0.0"),
        (["hello", "--max-tokens", "0"], "max_tokens = 0"),
        (["hello", "--timeout", "0"], "timeout_s = 0.0"),
        (["hello", "--raw", "--system", "x"], "--system has no effect with --raw"),
        ([""], "the prompt is empty"),
    ],
)
def test_bad_input_is_named_in_one_line(
    run: Run, target: str, arguments: list[str], named: str
) -> None:
    code, out, err = run("generate", *arguments, "--target", target)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {named}")
    assert err.count("\n") == 1


def test_refusals_of_the_executor_are_bad_input(
    run: Run, target: str, engine: AnsweringEngine
) -> None:
    engine.refusal = "prompt has 99 tokens; accepted: at most 64"
    assert run("generate", "hello", "--target", target) == (2, "", f"error: {engine.refusal}\n")


def test_a_model_without_a_chat_template_is_asked_in_raw_text(
    run: Run, engine: AnsweringEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {**WordTokenizer().files(), "tokenizer_config.json": b"{}"}
    monkeypatch.setattr(WordTokenizer, "files", lambda _: plain)
    with serving_in_thread(engine) as target:
        code, _, err = run("generate", "hello", "--target", target)
        assert (code, err.count("\n")) == (2, 1)
        assert "no chat template; give the prompt as text, with --raw" in err
        assert run("generate", "hello", "--target", target, "--raw")[0] == 0


def test_what_the_context_cut_is_told(run: Run, target: str, engine: AnsweringEngine) -> None:
    engine.context = 5
    code, out, err = run("generate", "hello", "--target", target, "--max-tokens", "100000")
    assert (code, out) == (0, "hello world\n")
    told = "cut after 2 of 100000 tokens: prompt and output fill the context of 5 tokens"
    assert err == f"note: {told}\n"
    assert run("generate", "hello", "--target", target, "--max-tokens", "2")[2] == ""


def test_nobody_there(run: Run) -> None:
    code, out, err = run("generate", "hello", "--target", NOBODY)
    assert (code, out) == (3, "")
    assert err == f"error: nobody answers at {NOBODY} (connection refused)\n"


@pytest.mark.parametrize(
    ("target", "code", "told"),
    [
        (
            "host-that-is-not.invalid:1",
            3,
            r"error: nobody answers at host-that-is-not\.invalid:1 \([a-z ]+\); accepted: host:.*",
        ),
        ("ipv4:nowhere", 2, "error: target .ipv4:nowhere. is no address; accepted: host:port.*"),
        (f"unix:/{'x' * 200}", 2, "error: target .unix:/x+. is no address; accepted: host:port.*"),
    ],
)
@pytest.mark.parametrize("command", ["generate hello --target", "policy get --scheduler"])
def test_a_target_that_leads_nowhere_is_told_in_one_line(
    run: Run, command: str, target: str, code: int, told: str
) -> None:
    ended, out, err = run(*command.split(), target)
    assert (ended, out) == (code, "")
    (line,) = err.splitlines()
    assert re.fullmatch(told, line)


def test_no_end_in_time(run: Run) -> None:
    with serving_in_thread(FakeEngine()) as target:
        code, out, err = run("generate", "hello", "--target", target, "--timeout", "0.5")
    assert (code, out, err) == (4, "", f"error: {target} did not finish in time\n")


def test_json_tells_errors_too(run: Run) -> None:
    code, out, _ = run("generate", "hello", "--target", NOBODY, "--json")
    answer = json.loads(out)
    assert (code, answer["prompt"]) == (3, "hello")
    assert NOBODY in answer["error"]


def test_a_terminal_shows_all_prompts_side_by_side(target: str) -> None:
    script = "from specsched_client.cli import main; main()"
    command = [sys.executable, "-c", script, "generate", "hello", "world", "--target", target]
    text = shown_on_terminal(command, "stdout")
    assert text.count(ANSWER) >= 2
    assert "3 of 4 drafts accepted" in text
    assert "\x1b[" in text


# ===================== status =====================


def test_status_shows_both_processes(
    run: Run, target: str, start_scheduler: Callable[[str], FakeScheduler]
) -> None:
    start_scheduler("default")
    code, out, err = run("status", "--target", target)
    assert (code, err) == (0, "")
    for fact in (
        "tiny (torch.float32)",
        "3 of 4 running, 2 waiting",
        "25% of 100 tokens",
        "190 in time; fallbacks: 10 late",
    ):
        assert fact in out
    for fact in ("scheduler default", "throughput", "executor-1, lane 2, shared memory", "41"):
        assert fact in out
    assert "\x1b[" not in out


def test_status_as_json(
    run: Run, target: str, start_scheduler: Callable[[str], FakeScheduler]
) -> None:
    start_scheduler("blue")
    start_scheduler("green")
    code, out, _ = run("status", "--target", target, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["executor"]["health"] == {"healthy": True, "message": "serving"}
    assert report["executor"]["load"]["num_waiting_reqs"] == 2
    assert report["executor"]["counters"]["num_accepted_tokens"] == "600"
    assert sorted(report["schedulers"]) == ["blue", "green"]
    assert report["schedulers"]["blue"]["version"] == "1.2.3"


def test_status_tells_a_scheduler_that_does_not_serve_yet(
    run: Run, start_scheduler: Callable[[str], FakeScheduler]
) -> None:
    scheduler = start_scheduler("default")
    assert "serving" in run("status")[1]
    scheduler.health.set("", HealthCheckResponse.NOT_SERVING)
    assert "not serving: it compiles" in run("status")[1]
    report = json.loads(run("status", "--json")[1])
    assert report["schedulers"]["default"]["is_serving"] is False
    scheduler.health.set("", HealthCheckResponse.SERVING)
    report = json.loads(run("status", "--json")[1])
    assert report["schedulers"]["default"]["is_serving"] is True


def test_status_of_what_is_left(run: Run, start_scheduler: Callable[[str], FakeScheduler]) -> None:
    start_scheduler("default")
    code, out, _ = run("status", "--target", NOBODY)
    assert code == 0
    assert "nobody answers" in out
    assert "1.2.3" in out


def test_status_of_nothing(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("status", "--target", NOBODY)
    assert code == 3
    assert "nobody answers" in out
    assert f"no scheduler in the run directory, {tmp_path / 'run'}" in out
    assert not (tmp_path / "run").exists()


def test_status_tells_an_executor_that_starts(run: Run, tmp_path: Path) -> None:
    with marked_as_starting(RunDir.open(tmp_path / "run"), NOBODY):
        code, out, _ = run("status", "--target", NOBODY)
        assert code == 3
        assert f"(pid {os.getpid()}) that will serve at {NOBODY} has been starting for" in out
        (told,) = json.loads(run("status", "--target", NOBODY, "--json")[1])["starting"]
        assert (told["pid"], told["target"]) == (os.getpid(), NOBODY)
    assert json.loads(run("status", "--target", NOBODY, "--json")[1])["starting"] == []


# ===================== policy =====================


def test_policy_get_and_set(run: Run, start_scheduler: Callable[[str], FakeScheduler]) -> None:
    scheduler = start_scheduler("default")
    assert run("policy", "get") == (0, "throughput\n", "")
    assert run("policy", "set", "fixed(k=2)") == (0, "default: throughput -> fixed(k=2)\n", "")
    assert dict(scheduler.policy.parameters) == {"k": 2.0}
    code, out, _ = run("policy", "get", "--json")
    assert code == 0
    assert json.loads(out) == {
        "scheduler": "default",
        "policy": "fixed(k=2)",
        "policies": ["throughput", "fixed"],
    }


def test_policy_refusals(run: Run, start_scheduler: Callable[[str], FakeScheduler]) -> None:
    start_scheduler("default")
    unknown = "error: policy 'unknown' is unknown\n"
    assert run("policy", "set", "unknown") == (2, "", unknown)
    code, _, err = run("policy", "set", "fixed(")
    assert code == 2
    assert err.startswith("error: policy 'fixed(' cannot be read; accepted: NAME")


def test_a_scheduler_is_chosen_by_name_or_path(
    run: Run, start_scheduler: Callable[[str], FakeScheduler], tmp_path: Path
) -> None:
    blue, green = start_scheduler("blue"), start_scheduler("green")
    code, _, err = run("policy", "set", "off")
    assert code == 2
    assert "blue, green" in err
    assert run("policy", "set", "off", "--scheduler", "green")[0] == 0
    path = tmp_path / "run" / "schedulers" / "blue.sock"
    assert run("policy", "set", "ratio", "--scheduler", str(path))[0] == 0
    assert (blue.policy.name, green.policy.name) == ("ratio", "off")
    assert run("policy", "get", "--scheduler", f"unix:{path}")[1] == "ratio\n"
    code, _, err = run("policy", "get", "--scheduler", "red")
    assert (code, err) == (
        2,
        f"error: no scheduler red in {tmp_path / 'run'}; present: blue, green\n",
    )
    code, _, err = run("policy", "get", "--scheduler", str(tmp_path / "none.sock"))
    assert code == 2
    assert "no socket is there" in err


def test_of_several_schedulers_the_one_that_is_followed_is_meant(
    run: Run, start_scheduler: Callable[[str], FakeScheduler]
) -> None:
    blue, green = start_scheduler("blue"), start_scheduler("green")
    blue.role, green.role = scheduler_pb2.LANE_ROLE_SHADOW, scheduler_pb2.LANE_ROLE_ACTIVE
    note = "note: green is meant, which is followed; present: blue, green\n"
    assert run("policy", "set", "off") == (0, "green: throughput -> off\n", note)
    assert run("policy", "get", "--scheduler", "blue") == (0, "throughput\n", "")
    blue.role = scheduler_pb2.LANE_ROLE_ACTIVE  # two executors, each follows another one
    code, out, err = run("policy", "get")
    assert (code, out) == (2, "")
    assert "choose by --scheduler: blue, green" in err


def test_the_socket_of_a_killed_scheduler_is_no_scheduler(
    run: Run, start_scheduler: Callable[[str], FakeScheduler], tmp_path: Path
) -> None:
    folder = tmp_path / "run" / "schedulers"
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as killed:  # closing it leaves the file
        killed.bind(str(folder / "blue.sock"))
    code, _, err = run("policy", "get")
    assert code == 3
    assert "no scheduler in" in err
    start_scheduler("green")
    assert run("policy", "get") == (0, "throughput\n", "")


def test_no_scheduler(run: Run) -> None:
    code, _, err = run("policy", "get")
    assert code == 3
    assert err.startswith("error: no scheduler in ")


# ===================== commands of other packages =====================


def plugin(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, _plugins.GROUP)


def greet(name: str) -> None:
    """Greet somebody."""
    typer.echo(f"hello {name}")


tools = typer.Typer(help="Tools.")


@tools.command()
def hammer() -> None:
    """Hit."""
    typer.echo("bang")


@tools.command()
def saw() -> None:
    """Cut."""


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    found = [
        plugin("greet", f"{__name__}:greet"),
        plugin("tools", f"{__name__}:tools"),
        plugin("broken", "a_package_that_is_not_there.commands:run"),
        plugin("scheduler", "another_that_is_not_there:run"),
        plugin("status", f"{__name__}:greet"),
    ]
    monkeypatch.setattr(_plugins, "entry_points", lambda group: found)
    return found


@pytest.mark.usefixtures("plugins")
def test_functions_and_apps_of_others_are_commands(run: Run) -> None:
    assert run("greet", "you") == (0, "hello you\n", "")
    assert run("tools", "hammer") == (0, "bang\n", "")


@pytest.mark.usefixtures("plugins")
def test_help_lists_commands_of_others(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for line in ("Greet somebody.", "Tools.", "(not available: No module named", "executors on"):
        assert line in out


@pytest.mark.usefixtures("plugins")
def test_a_command_that_cannot_be_loaded_says_why(run: Run) -> None:
    code, out, err = run("broken", "--any", "argument")
    assert (code, out) == (5, "")
    assert err.startswith("error: broken cannot be loaded from a_package_that_is_not_there")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("plugins")
def test_others_cannot_replace_our_commands(run: Run) -> None:
    assert run("status", "--target", NOBODY)[0] == 3


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("calibrate", "specsched_scheduler.calibrate_file:calibrate"),
        ("executor", "specsched_executor.commands:executor"),
        ("plan", "specsched_scheduler.plan_file:plan"),
        ("scheduler", "specsched_scheduler.commands:scheduler"),
    ],
)
def test_summaries_are_those_of_the_commands(name: str, module: str) -> None:
    command = _plugins._load(plugin(name, module))
    assert command.help.strip().splitlines()[0] == _plugins.SUMMARIES[name]


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    heavy = ("grpc", "numba", "numpy", "torch", "tokenizers", "specsched_scheduler")
    script = (
        "import sys, atexit; from specsched_client.cli import main;"
        f"atexit.register(lambda: print([m for m in {heavy} if m in sys.modules]));"
        "main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_usage_errors_exit_with_2(run: Run) -> None:
    code, _, err = run("generate", "hello", "--tempature", "1")
    assert code == 2
    assert "--tempature" in err


@pytest.mark.parametrize(
    "command", ["executor", "scheduler", "plan", "calibrate", "generate", "status", "policy set"]
)
def test_help_cuts_nothing_at_80_columns(command: str) -> None:
    script = "from specsched_client.cli import main; main()"
    shown = subprocess.run(
        [sys.executable, "-c", script, *command.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    ).stdout
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("group", "command"),
    [((), "scheduler"), (("bench",), "sweep"), (("calibration",), "import"), (("trace",), "head")],
)
def test_lists_of_commands_cut_no_summary(
    run: Run, monkeypatch: pytest.MonkeyPatch, group: tuple[str, ...], command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = run(*group, "--help")[1].split("Commands:")[1]
    assert command in listed
    assert "..." not in listed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("status", "--target", "localhost"), "target 'localhost' is no address; accepted: host"),
        (("generate", "hello", "--target", ":5"), "target ':5' is no address; accepted: host"),
        (("status", "--timeout", "-1"), "-1.0; accepted: more than 0"),
        (("policy", "get", "--timeout", "nan"), "nan; accepted: more than 0"),
        (("policy", "get", "--scheduler", "host:port"), "target 'host:port' is no address"),
    ],
)
def test_addresses_and_time_limits_are_checked(
    run: Run, arguments: tuple[str, ...], named: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert named in err


@pytest.mark.parametrize(
    "arguments",
    [("hello \udcff",), ("hello", "\udcff"), ("--raw", "\udcff"), ("a", "--stop", "\udcff")],
)
def test_text_that_is_not_utf_8_is_refused(
    run: Run, target: str, arguments: tuple[str, ...]
) -> None:
    code, _, error = run("generate", "--target", target, *arguments)
    assert (code, error.startswith("error: "), error.count("\n")) == (2, True, 1), error


def test_a_policy_that_is_not_utf_8_is_refused(
    run: Run, start_scheduler: Callable[..., FakeScheduler]
) -> None:
    start_scheduler("only")
    code, _, error = run("policy", "set", "fixed\udcff")
    assert (code, error.startswith("error: "), error.count("\n")) == (2, True, 1), error


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--run-dir"),
        ("top", "--count", "1", "--run-dir"),
        ("calibration", "export", "--run-dir"),
        ("status", "--scheduler"),
    ],
)
def test_a_path_that_is_too_long_is_refused(run: Run, arguments: tuple[str, ...]) -> None:
    code, _, error = run(*arguments, "/" + "a" * 5000)
    assert (code, "File name too long" in error, error.count("\n")) == (2, True, 1), error
