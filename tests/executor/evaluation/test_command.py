from __future__ import annotations

import json

import numpy as np
import pytest
import typer.testing
from specsched_executor.drafters.dspark import save_checkpoint
from specsched_executor.evaluation.command import evaluate

from tests.executor.drafters.dspark.small import random_checkpoint
from tests.executor.training.tiny import make_prompts, make_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    make_target(folder / "target")
    make_prompts(folder / "first.jsonl", 6)
    make_prompts(folder / "second.jsonl", 6)
    checkpoint = random_checkpoint(window=24)
    save_checkpoint(folder / "drafter", checkpoint.config, checkpoint.tensors)
    return folder


def run(folder, *arguments):
    given = ["--model", folder / "target", "--max-tokens", 12, "--max-prompt-tokens", 40]
    given += ["--num-seqs", 4, *arguments]
    return typer.testing.CliRunner().invoke(evaluate, ["drafter", *map(str, given)])


def prompts(folder):
    return ["--prompts", folder / "first.jsonl", "--prompts", folder / "second.jsonl"]


def dspark(folder):
    return ["--checkpoint", folder / "drafter", "--max-draft-tokens", 4]


def test_it_reports_what_was_generated_and_leaves_a_trace(folder, tmp_path):
    trace = tmp_path / "trace.npz"
    given = [*prompts(folder), *dspark(folder), "--limit", 4, "--json", "--trace", trace]
    result = run(folder, *given)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["by_source"].keys() == {"first", "second"}
    assert report["num_requests"] <= 8
    assert report["low_95"] <= report["mean_accepted"] <= report["high_95"]
    with np.load(trace) as archive:
        held = dict(archive)
    assert held["accepted"].mean() == pytest.approx(report["mean_accepted"])
    assert held["conf"].shape == (report["num_steps"], 4)
    assert (held["accepted"] <= held["num_verified"]).all()
    assert (held["temperature"] == 1.0).all()
    assert held["step_pos"].min() >= 1
    # An answer is its first token, the accepted drafts and a bonus token of each step, and a last
    # token that nobody drafts for.
    most = 2 * 8 + held["accepted"].sum() + len(held["accepted"])
    assert report["num_output_tokens"] <= most


def test_the_same_seeds_give_the_same_report(folder):
    given = [*prompts(folder), *dspark(folder), "--limit", 2, "--json", "--num-seqs", 1]
    assert json.loads(run(folder, *given).stdout) == json.loads(run(folder, *given).stdout)


def test_a_calibration_is_reported_beside_the_raw_confidence(folder, tmp_path):
    part = {"temperature": [1.0] * 4, "intercept": [-2.0] * 4}
    state = {"entries": [{"calibration": {"greedy": part, "sampled": part}}]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    diagram = tmp_path / "diagram.png"
    given = [*prompts(folder), *dspark(folder), "--calibration", tmp_path / "state.json"]
    result = run(folder, *given, "--limit", 2, "--json", "--diagram", diagram)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    raw, calibrated = (report[kind]["positions"][0] for kind in ("raw", "calibrated"))
    assert raw["acceptance"] == calibrated["acceptance"]
    assert raw["ece"] != calibrated["ece"]
    assert diagram.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("option", ["--diagram", "--trace"])
@pytest.mark.parametrize("name", ["it.docx", ".", "none/it.png", "none/it.npz"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(folder, tmp_path, option, name):
    path = tmp_path / name
    result = run(folder, *prompts(folder), *dspark(folder), option, path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{option} {path}" in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_costs_no_report(folder, tmp_path):
    diagram = tmp_path / "diagram.png"
    diagram.symlink_to("/dev/full")
    given = [*prompts(folder), *dspark(folder), "--limit", 2, "--json"]
    result = run(folder, *given, "--diagram", diagram)
    assert result.exit_code == 2
    assert json.loads(result.stdout)["num_requests"] > 0
    assert "No space left on device" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--drafter", "ngram", "--checkpoint", "{}/drafter"], "no effect with drafter ngram"),
        (["--drafter", "eagle"], "eagle"),
        (["--checkpoint", "{}/target"], "architectures"),
        (["--checkpoint", "{}/drafter", "--max-draft-tokens", "5"], "block_size, 4"),
        (["--checkpoint", "{}/drafter", "--temperature", "-1"], "temperature is -1"),
        (["--checkpoint", "{}/drafter", "--max-prompt-tokens", "3"], "no prompt of at most 3"),
    ],
)
def test_what_cannot_be_run_is_said(folder, arguments, said):
    result = run(folder, *prompts(folder), *[text.format(folder) for text in arguments])
    assert result.exit_code == 2
    assert said in result.output
