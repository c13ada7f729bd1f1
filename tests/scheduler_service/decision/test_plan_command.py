"""`specsched plan`: where it reads, what it prints, how it fails."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType

import pytest
import typer
from specsched_scheduler.plan_file import plan
from specsched_scheduler.policies import PolicyChoice, StepView, registry
from typer.testing import CliRunner

from tests.scheduler_service.decision.documents import GOOD, changed


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(plan)
    return app


def test_command_answers_in_json(app: typer.Typer, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    result = CliRunner().invoke(app, [str(path), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["budget"] == 6


def test_command_reads_standard_input(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["-", "--json"], input=json.dumps([GOOD, GOOD]))
    assert [answer["budget"] for answer in json.loads(result.stdout)] == [6, 6]


def test_command_prints_a_table(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["-"], input=json.dumps({"name": "mine", "request": GOOD}))
    assert result.exit_code == 0
    assert "mine" in result.stdout
    assert "3x2" in result.stdout


@pytest.mark.parametrize("content", [b"{", b"\xff", json.dumps(changed("cost", 1)).encode()])
def test_command_refuses_what_it_cannot_read(
    app: typer.Typer, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "request.json"
    path.write_bytes(content)
    result = CliRunner().invoke(app, [str(path), "--json"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {path}: ")


def test_command_names_a_file_that_is_not_there(app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path / "none.json")])
    assert result.exit_code == 2
    assert "No such file" in result.stderr


def test_a_pipe_gets_the_table_neither_cut_nor_folded(app: typer.Typer) -> None:
    document = {"name": "a_name_that_has_no_room", "request": GOOD}
    result = CliRunner().invoke(
        app, ["-"], input=json.dumps(document), env={"COLUMNS": "80", "TERM": "dumb"}
    )
    header, row = result.stdout.splitlines()
    assert header.split() == [
        *("request", "policy", "budget", "verify_lens", "tokens", "ms", "model", "flags")
    ]
    assert row.split()[0] == "a_name_that_has_no_room"


class Broken:
    parameters = ()

    def decide(self, step: StepView) -> PolicyChoice:
        raise KeyError("share")


def test_command_tells_of_a_policy_that_fails_in_one_line(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("somebody")
    module.__dict__["Broken"] = Broken
    monkeypatch.setitem(sys.modules, "somebody", module)
    point = EntryPoint("broken", "somebody:Broken", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]))
    requests = json.dumps([GOOD, changed("policy", "broken")])
    result = CliRunner().invoke(app, ["-", "--json"], input=requests)
    assert (result.exit_code, result.stdout) == (1, "")
    told = "error: -: [1]: policy broken raised KeyError: 'share' "
    assert result.stderr.startswith(f"{told}({__file__}:")
    assert result.stderr.count("\n") == 1
