"""docs/json.md: its examples are run, its tables list the fields that there are."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import BaseModel
from specsched_client import TokenLogprob
from specsched_scheduler import plan_document
from specsched_scheduler.decision import DecisionFlags
from specsched_scheduler.plan_file import plan_text

from tests.clients.conftest import FakeScheduler, Run
from tests.repository import ROOT

DOCUMENT = (ROOT / "docs/json.md").read_text()


def section(heading: str) -> str:
    """The text below a heading, up to the next one."""
    return re.split(r"^#+ ", DOCUMENT.split(f"# {heading}\n", 1)[1], flags=re.MULTILINE)[0]


def examples(heading: str) -> list[Any]:
    return [json.loads(each) for each in re.findall(r"```json\n(.*?)```", section(heading), re.S)]


def documented(heading: str) -> set[str]:
    """The fields that the table of a section lists."""
    cells = re.findall(r"^\| (`[^|]+`) \|", section(heading), flags=re.MULTILINE)
    return {name.removesuffix("[]") for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        annotation: Any = field.annotation
        is_list = getattr(annotation, "__origin__", None) is list
        for inner in (annotation, *get_args(annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from fields_of(inner, f"{prefix}{name}{'[]' if is_list else ''}.")


PLAN = "`specsched plan FILE --json`"


def test_the_plan_is_answered_as_it_says() -> None:
    (request,), (answer,) = examples(PLAN), examples("Its answer")
    assert json.loads(plan_text(json.dumps(request))) == answer
    assert json.loads((ROOT / "examples" / "step.json").read_text()) == request
    named = json.loads(plan_text(json.dumps([{"name": "a", "request": request}])))
    assert named == [{"name": "a", **answer}]


def test_the_fields_of_a_plan_request_are_those_that_are_read() -> None:
    assert documented("A plan request") == set(fields_of(plan_document._Request))


def test_the_fields_of_a_plan_answer_are_those_that_are_written() -> None:
    answer = examples("Its answer")[0]
    assert documented("Its answer") == set(answer)
    flags = {str(flag.name).lower() for flag in DecisionFlags if flag}
    row = next(line for line in section("Its answer").splitlines() if line.startswith("| `flags`"))
    assert set(re.findall(r"`(\w+)`", row)) - {"flags", "DecisionFlag"} == flags


def test_the_fields_of_an_output_are_those_that_are_written(run: Run, target: str) -> None:
    heading = "`specsched generate PROMPT... --json`"
    options = ("--logprobs", "1", "--prompt-logprobs", "1")
    _, out, _ = run("generate", "hello", "--target", target, "--json", *options)
    optional = {"logprobs", "prompt_logprobs"}  # the engine of these tests has none
    assert set(json.loads(out)) - optional == documented(heading) - optional
    assert documented(heading) >= optional
    row = next(line for line in section(heading).splitlines() if line.startswith("| `logprobs`"))
    told = {field.name for field in dataclasses.fields(TokenLogprob)}
    assert set(re.findall(r"`(\w+)`", row)) - {"logprobs"} == told
    _, out, _ = run("generate", "hello", "--target", "127.0.0.1:1", "--json")
    assert set(json.loads(out)) == {"index", "output_index", "prompt", "error"}


def test_the_fields_of_a_status_are_those_that_are_written(
    run: Run, target: str, start_scheduler: Callable[[str], FakeScheduler]
) -> None:
    start_scheduler("default")
    report = json.loads(run("status", "--target", target, "--json")[1])
    nested = {f"executor.{name}" for name in report["executor"]} - {"executor.target"}
    assert documented("`specsched status --json`") == {*report, *nested}
    assert report["schedulers"]["default"]["is_serving"] is True
    report = json.loads(run("status", "--json")[1])
    assert set(report["executor"]) == {"target", "error"}


def test_policies_are_shown_as_it_says(
    run: Run, start_scheduler: Callable[[str], FakeScheduler]
) -> None:
    start_scheduler("default")
    got, put = examples("`specsched policy get --json`, `policy set --json`")
    assert json.loads(run("policy", "set", "fixed(k=2)", "--json")[1]) == put
    assert json.loads(run("policy", "get", "--json")[1]) == got


def test_the_fields_of_a_calibration_are_those_that_are_written(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "some_drafts.npz"
    with np.load(ROOT / "tests/fixtures/drafts.npz") as recorded:
        np.savez(trace, **{name: column[:4000] for name, column in recorded.items()})
    code, out, _ = run("calibrate", str(trace), "--json")
    assert code == 0
    fit = next(iter(json.loads(out).values()))
    nested = {f"positions[].{name}" for name in fit["positions"][0]}
    row = next(line for line in DOCUMENT.splitlines() if line.startswith("| `positions[].raw"))
    assert set(re.findall(r"`(\w+)`", row)) == set(fit["positions"][0]["raw"][0])
    assert documented("`specsched calibrate TRACE --json`") == {*fit, *nested}


def test_a_field_that_is_missing_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = DOCUMENT.replace("| `cost.fingerprint` |", "| `cost.fingerprints` |")
    monkeypatch.setitem(globals(), "DOCUMENT", changed)
    assert documented("A plan request") != set(fields_of(plan_document._Request))
