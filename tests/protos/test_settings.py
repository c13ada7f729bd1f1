"""Flag beats environment beats default; refusals name value, source and accepted range."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import typer
from pydantic import Field, ValidationError, field_validator
from specsched_protocol.settings import (
    ConfigError,
    MissingPackageError,
    ProcessSettings,
    Settings,
    load_settings,
    settings_command,
)
from typer.testing import CliRunner


class Oven(ProcessSettings):
    env_prefix = "SPECSCHED_OVEN_"

    degrees: int = Field(180, ge=50, le=250, description="How hot")
    mode: Literal["fan", "grill"] = Field("fan", description="How")
    light: bool = Field(True, description="Whether to see")
    pizza: bool = Field(False, description="Whether to bake one")

    @field_validator("pizza")
    @classmethod
    def _check_pizza(cls, pizza: bool) -> bool:
        if pizza:
            raise MissingPackageError("needs cheese: pip install cheese")
        return pizza


class Shop(Settings):
    env_prefix = "SPECSCHED_SHOP_"

    door: Path = Field(Path("/door"), description="Where to go in")

    @field_validator("door")
    @classmethod
    def _check(cls, door: Path) -> Path:
        if door != Path("/door"):
            raise ValueError("it is locked")
        return door


def test_flag_beats_environment_beats_default():
    environ = {"SPECSCHED_OVEN_DEGREES": "200", "SPECSCHED_OVEN_MODE": "grill"}
    oven = load_settings(Oven, {"degrees": 90, "mode": None}, environ)
    assert (oven.degrees, oven.mode, oven.light) == (90, "grill", True)


def test_inherited_option_keeps_the_variable_of_its_base():
    assert Oven.env_name("run_dir") == "SPECSCHED_RUN_DIR"
    assert Oven.env_name("degrees") == "SPECSCHED_OVEN_DEGREES"
    assert load_settings(Oven, {}, {"SPECSCHED_RUN_DIR": "/run/x"}).run_dir == Path("/run/x")


@pytest.mark.parametrize("value", ["300", "hot", "nan", "1e3"])
def test_bad_value_is_named_with_source_and_range(value):
    with pytest.raises(ConfigError) as caught:
        load_settings(Oven, {}, {"SPECSCHED_OVEN_DEGREES": value})
    text = str(caught.value)
    assert value in text
    assert "--degrees" in text
    assert "SPECSCHED_OVEN_DEGREES" in text
    assert ">= 50 and <= 250" in text


def test_every_bad_option_is_named_at_once():
    with pytest.raises(ConfigError, match=r"degrees = 1 .*mode = 'steam'.*'fan' or 'grill'"):
        load_settings(Oven, {"degrees": 1, "mode": "steam"}, {})


def test_unknown_variable_of_the_process_is_refused():
    with pytest.raises(ConfigError, match=r"SPECSCHED_OVEN_DEGRES; known: .*SPECSCHED_OVEN_DEGREE"):
        load_settings(Oven, {}, {"SPECSCHED_OVEN_DEGRES": "200"})


def test_variables_of_other_processes_are_left_alone():
    environ = {"SPECSCHED_FRIDGE_DEGREES": "4", "SPECSCHED_ANYTHING": "1"}
    assert load_settings(Oven, {}, environ).degrees == 180


def test_settings_do_not_change():
    with pytest.raises(ValidationError):
        Oven(degrees=100).degrees = 120


def _invoke(*arguments: str, env: dict[str, str] | None = None):
    seen: list[Settings] = []

    def run(oven: Oven) -> int:
        seen.append(oven)
        return 3

    app = typer.Typer()
    app.command()(settings_command(Oven, run, doc="Bake."))
    return CliRunner().invoke(app, list(arguments), env=env), seen


def test_command_passes_flags_and_exit_status_on():
    result, seen = _invoke("--degrees", "90", "--no-light", env={"SPECSCHED_OVEN_MODE": "grill"})
    assert result.exit_code == 3
    assert seen == [Oven(degrees=90, light=False, mode="grill")]


def test_command_refuses_without_running():
    result, seen = _invoke("--degrees", "9000")
    assert result.exit_code == 2
    assert seen == []
    assert "degrees = 9000" in result.stderr


def test_a_missing_package_has_a_status_of_its_own_unless_more_is_wrong():
    result, seen = _invoke("--pizza")
    assert (result.exit_code, seen) == (5, [])
    assert "pip install cheese" in result.stderr
    result, seen = _invoke("--pizza", "--degrees", "9000")
    assert (result.exit_code, seen) == (2, [])
    assert "pip install cheese" in result.stderr


def test_help_names_options_variables_and_defaults():
    result, _ = _invoke("--help", env={"COLUMNS": "200", "TERM": "dumb"})
    for text in (
        "--degrees",
        "SPECSCHED_OVEN_DEGREES",
        "180",
        "How hot",
        "--no-light",
        "fan|grill",
    ):
        assert text in result.stdout


NARROW = {"COLUMNS": "80", "TERM": "dumb"}


class Kitchen(Oven):
    env_prefix = "SPECSCHED_KITCHEN_"

    max_num_batched_loaves: int = Field(3, description="Loaves")
    guests: list[str] = Field([], description="Who comes")
    recipe: Path | None = Field(None, description="What to bake")


def test_help_cuts_no_name_on_a_narrow_terminal():
    app = typer.Typer(rich_markup_mode=None)
    app.command()(settings_command(Kitchen, lambda _: 0, doc="Cook."))
    shown = CliRunner().invoke(app, ["--help"], env=NARROW).stdout
    for field in Kitchen.model_fields:
        assert f"--{field.replace('_', '-')}" in shown
        assert Kitchen.env_name(field) in shown
    assert "…" not in shown
    assert "(default: none;" in " ".join(shown.split())
    assert "[]" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_path_is_named_as_it_was_typed():
    app = typer.Typer()
    app.command()(settings_command(Shop, lambda _: 0, doc="Sell."))
    result = CliRunner().invoke(app, ["--door", "/nowhere"])
    assert result.exit_code == 2
    assert "door = '/nowhere' (--door or SPECSCHED_SHOP_DOOR): it is locked" in result.stderr
