"""Documents say what the code says: options, commands, exit codes, findings."""

from __future__ import annotations

import re

import click
import pytest
import typer
from pydantic import Field
from specsched_client.cli._main import app
from specsched_client.cli.doctor.findings import Code
from specsched_executor.config import ExecutorConfig
from specsched_protocol.exit_codes import ExitCode
from specsched_protocol.settings import Settings
from specsched_scheduler.config import SchedulerConfig
from typer.testing import CliRunner

from scripts.gen_docs import (
    DOCUMENTS,
    PARTS,
    commands_table,
    exit_codes_table,
    leaves,
    options_table,
    rewritten,
    stale,
)
from scripts.option_facts import option_facts
from tests.repository import ROOT

OPERATIONS = (ROOT / "docs/operations.md").read_text()
CLI = (ROOT / "docs/cli.md").read_text()
COMMANDS = {" ".join(words): command for words, command in leaves(typer.main.get_command(app), ())}


def test_generated_parts_are_up_to_date():
    assert stale() == [], "run `make docs`"
    used = {
        name for path in DOCUMENTS for name in re.findall("generated: (.*) -->", path.read_text())
    }
    assert used == set(PARTS)


@pytest.mark.parametrize(
    ("config", "part"), [(ExecutorConfig, "executor"), (SchedulerConfig, "scheduler")]
)
def test_every_option_is_documented_with_its_default_and_unit(config, part):
    sections = [
        OPERATIONS.split(f"generated: options of {name} -->")[1].split("<!-- end -->")[0]
        for name in ("both", f"the {part}")
    ]
    lines = "".join(sections).splitlines()
    facts = {each.flag: each for _, each in option_facts(config)}
    assert len(facts) == len(config.model_fields)
    for flag, each in facts.items():
        (row,) = (line for line in lines if line.startswith(f"| `{flag}` | "))
        assert row.split(" | ")[1:3] == [each.default, each.unit]
        assert each.description
    timed = [flag for flag, each in facts.items() if each.unit == "ms"]
    assert timed
    assert all(flag.endswith("-ms") for flag in timed)


def test_the_prefix_above_a_table_is_that_of_its_variables():
    for config in (ExecutorConfig, SchedulerConfig):
        for _, each in option_facts(config):
            name = each.flag.removeprefix("--").removeprefix("[no-]").replace("-", "_").upper()
            prefix = each.variable.removesuffix(name)
            assert f"`{prefix}`:" in OPERATIONS


class Sample(Settings):
    """Options of all kinds."""

    wait_ms: int = Field(5, ge=1, le=9, description="Waits")
    is_on: bool = Field(False, description="Is on")
    some: list[int] = Field([], description="A | B", json_schema_extra={"unit": "rows"})


class WithoutUnit(Settings):
    """A number of nobody knows what."""

    size: int = Field(5, description="Size")


def test_a_table_says_default_unit_and_range():
    table = options_table(facts for _, facts in option_facts(Sample))
    assert table.splitlines()[2:] == [
        "| `--wait-ms` | `5` | ms | 1 to 9 | Waits |",
        "| `--[no-]is-on` | off |  |  | Is on |",
        "| `--some` | none | rows |  | A \\| B |",
    ]


def test_a_number_without_a_unit_is_refused():
    with pytest.raises(ValueError, match="size is a number without a unit"):
        list(option_facts(WithoutUnit))


def test_a_document_that_drifted_is_noticed_and_mended():
    path = DOCUMENTS[0]
    text = path.read_text()
    drifted = text.replace("| `--port` | `50051` |", "| `--port` | `50052` |")
    assert drifted != text
    assert rewritten(drifted) == text


def test_exit_codes_are_all_told():
    table = exit_codes_table()
    assert all(f"| {code.value} | " in table for code in ExitCode)
    for code in ExitCode:
        assert str(code.value) in (app.info.help or "")


def test_every_finding_of_doctor_has_its_line():
    told = set(re.findall(r"`([a-z-]+\.[a-z-]+)`", CLI.split("## doctor")[1]))
    assert told == {code for code in Code if "." in code}


# ===================== Commands =====================


def test_every_command_that_answers_does_so_in_json_too():
    without = {
        words
        for words, command in COMMANDS.items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == {"executor", "scheduler"}
    assert "| no |" not in commands_table(typer.main.get_command(app))


def test_the_verbs_of_an_operator_are_there():
    wanted = "top, status, lanes, promote, drain, policy get, policy set, cost show, doctor"
    wanted += ", calibration show, trace summary, trace head"
    assert set(wanted.split(", ")) <= set(COMMANDS)
    options = {
        opt
        for words in ("cost show", "calibration show")
        for p in COMMANDS[words].params
        for opt in p.opts
    }
    assert "--plot" in options


@pytest.mark.parametrize("words", sorted(COMMANDS))
def test_help_is_there_without_colours(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, [*words.split(), "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage: " in click.unstyle(result.output)
    assert "\x1b" not in result.output
