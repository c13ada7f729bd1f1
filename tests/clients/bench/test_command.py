"""`specsched bench serve` in this process: what it refuses, and a server that keeps no counters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.conftest import Run
from tests.executor.gateway.fakes import AnsweringEngine


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"turns": ["hello world"]}\n{"prompt": "good"}\n')
    return str(file)


def serve(run: Run, target: str, prompts: str, *options: str) -> tuple[int, str, str]:
    return run("bench", "serve", "--prompts", prompts, "--target", target, *options)


def test_a_report_without_a_scheduler(run: Run, target: str, prompts: str, tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    options = "--concurrency 1 --concurrency 2 --repeats 2 --warm-up 1 --json"
    code, out, _ = serve(run, target, prompts, *options.split(), "--output", str(output))
    assert code == 0
    report = json.loads(out)
    assert report == json.loads(output.read_text())
    assert [each["load"]["concurrency"] for each in report["results"]] == [1, 2]
    assert report["scheduler"] is None
    assert report["executors"][0]["model"] == "tiny"
    for result in report["results"]:
        (variant,) = result["variants"].values()
        assert variant["ratio_to_baseline"] is None
        assert variant["summary"]["num_requests"] == 4
        assert variant["summary"]["num_output_tokens"] == 16
        assert [len(each["requests"]) for each in variant["rounds"]] == [2, 2]
    for fact in ("machine", "versions", "settings", "command", "recorded_at"):
        assert report[fact]


def test_a_table_for_people(run: Run, target: str, prompts: str) -> None:
    code, out, _ = serve(run, target, prompts, "--rate", "50", "--repeats", "1")
    assert code == 0
    for words in ("50 requests/s", "tokens/s per user", "time to first token, ms", "fallbacks"):
        assert words in out


def test_failed_requests_fail_the_command(
    run: Run, engine: AnsweringEngine, target: str, prompts: str
) -> None:
    engine.refusal = "not today"
    code, _, error = serve(run, target, prompts, "--repeats", "1", "--warm-up", "0")
    assert code == 1
    assert "2 requests failed" in error


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--concurrency 0", 2, "concurrency = 0; accepted: 1 or more"),
        ("--rate -1", 2, "rate = -1.0; accepted"),
        ("--policy off --policy off", 2, "accepted: each once"),
        ("--policy fixed(", 2, "policy 'fixed(' cannot be read; accepted"),
        ("--policy off", 3, "no scheduler in"),
        ("--baseline-target TARGET", 2, "is the target itself"),
        ("--max-tokens 0", 2, "--max-tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    run: Run, target: str, prompts: str, options: str, code: int, message: str
) -> None:
    options = options.replace("TARGET", target)
    found, _, error = serve(run, target, prompts, *options.split())
    assert (found, message in " ".join(error.split())) == (code, True), error
