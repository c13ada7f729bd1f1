"""One way to configure every process of the project: flag, then environment, then default.

A process describes its options once, as a frozen `Settings` class. `load_settings` is its one
loader and `settings_command` turns the class into a command whose flags are its fields, so that
help text, environment variable, range check and error message of an option come from one line.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from .exit_codes import ExitCode
from .logs import LogFormat, LogLevel
from .run_dir import default_run_dir

__all__ = [
    "ENV_PREFIX",
    "ConfigError",
    "MissingPackageError",
    "ProcessSettings",
    "Settings",
    "accepted_bounds",
    "load_settings",
    "run_command",
    "settings_command",
]

ENV_PREFIX = "SPECSCHED_"


class ConfigError(ValueError):
    """Options that cannot be used; the message names each value and what is accepted."""

    exit_code: ClassVar[ExitCode] = ExitCode.BAD_INPUT
    """Of a process that cannot start for it."""


class MissingPackageError(ConfigError):
    """An option needs a package that is not installed; the message says how to get it."""

    exit_code: ClassVar[ExitCode] = ExitCode.MISSING_PACKAGE


class Settings(BaseModel):
    """Base of a process's options: immutable, checked on construction, unknown names refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    env_prefix: ClassVar[str] = ENV_PREFIX
    """Prefix of the variables of the options that this class adds to its base."""

    @classmethod
    def env_name(cls, field: str) -> str:
        """The environment variable of an option; an inherited option keeps its base's."""
        for base in reversed(cls.__mro__):
            if issubclass(base, Settings) and field in base.model_fields:
                return base.env_prefix + field.upper()
        raise KeyError(field)


class ProcessSettings(Settings):
    """Options that every long-running process has."""

    run_dir: Path = Field(
        default_factory=lambda: default_run_dir(os.environ),
        description="Directory executors and schedulers meet in",
        json_schema_extra={
            "default": "`$XDG_RUNTIME_DIR/specsched`, else `/tmp/specsched-UID`",
        },
    )
    log_level: LogLevel = Field("info", description="Least severe level that is logged")
    log_format: LogFormat = Field("auto", description="auto: console on a terminal, else json")


S = TypeVar("S", bound=Settings)


def load_settings(
    settings: type[S], flags: Mapping[str, object], environ: Mapping[str, str] = os.environ
) -> S:
    """Combine flags (None: not given) with the environment and the defaults, in this order.

    Raises ConfigError naming every offending option, its value and what is accepted; a variable
    with the prefix of `settings` that is no option of it is an error too. Where nothing else is
    wrong than that packages are missing, it is a MissingPackageError.
    """
    variables = {settings.env_name(field): field for field in settings.model_fields}
    _refuse_unknown_variables(settings, variables, environ)
    given: dict[str, Any] = {
        field: environ[variable] for variable, field in variables.items() if variable in environ
    }
    given |= {field: value for field, value in flags.items() if value is not None}
    try:
        return settings(**given)
    except ValidationError as error:
        details = error.errors(include_url=False)
        lines = [_describe(detail, settings) for detail in details]
        is_missing = all(map(_is_missing_package, details))
        raise (MissingPackageError if is_missing else ConfigError)("; ".join(lines)) from None


def settings_command(
    settings: type[S], run: Callable[[S], int], *, doc: str
) -> Callable[..., None]:
    """Make a typer command function with one flag per field of `settings`.

    It loads the settings, calls `run` with them and exits with its result; a ConfigError is printed
    to stderr and exits with its `exit_code`.
    """

    def command(**flags: object) -> None:
        try:
            loaded = load_settings(settings, flags)
        except ConfigError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        raise typer.Exit(run(loaded))

    parameters = [
        _parameter(settings, name, field) for name, field in settings.model_fields.items()
    ]
    # typer reads both: the signature for order and defaults, the annotations for the types.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    command.__doc__ = doc
    return command


def run_command(command: Callable[..., None]) -> None:
    """Be the process of one command: what `python -m` a package does."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    app()


def _parameter(settings: type[Settings], name: str, field: FieldInfo) -> inspect.Parameter:
    default = field.get_default(call_default_factory=True)
    # The default stands in the text: typer would show one that means "not given".
    shown = "none" if default is None or default == [] else str(default)
    option = typer.Option(
        help=f"{field.description} (default: {shown}; {settings.env_name(name)})",
        show_default=False,
    )
    # None stands for "not given", so that the environment and the default keep their turn.
    field_type: Any = field.annotation
    annotation = Annotated[field_type | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _refuse_unknown_variables(
    settings: type[Settings], known: Mapping[str, str], environ: Mapping[str, str]
) -> None:
    if settings.env_prefix == ENV_PREFIX:  # shared by all processes: others may know the variable
        return
    for variable in sorted(environ):
        if variable.startswith(settings.env_prefix) and variable not in known:
            raise ConfigError(f"unknown variable {variable}; known: {', '.join(sorted(known))}")


def _describe(detail: ErrorDetails, settings: type[Settings]) -> str:
    name = str(detail["loc"][0]) if detail["loc"] else ""
    reason = detail["msg"].removeprefix("Value error, ")
    if name not in settings.model_fields:
        return f"{name}: {reason}" if name else reason
    source = f"--{name.replace('_', '-')} or {settings.env_name(name)}"
    bounds = accepted_bounds(settings.model_fields[name])
    accepted = f"; accepted: {bounds}" if bounds else ""
    given = detail["input"]
    given = str(given) if isinstance(given, PurePath) else given
    return f"{name} = {given!r} ({source}): {reason[:1].lower()}{reason[1:]}{accepted}"


def _is_missing_package(detail: ErrorDetails) -> bool:
    return isinstance(detail.get("ctx", {}).get("error"), MissingPackageError)


def accepted_bounds(field: FieldInfo) -> str:
    """The bounds of a number, e.g. ">= 1 and <= 16"; empty where it has none."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{sign} {getattr(constraint, attribute)}"
        for constraint in field.metadata
        for attribute, sign in signs.items()
        if getattr(constraint, attribute, None) is not None
    ]
    return " and ".join(bounds)
