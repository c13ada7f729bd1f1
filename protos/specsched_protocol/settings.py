"""One way to configure every process of the project: flag, then environment, then default.

A process describes its options once, as a frozen `Settings` class. `load_settings` is its one
loader and `settings_command` turns the class into a command whose flags are its fields, so that
help text, environment variable, range check and error message of an option come from one line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["ENV_PREFIX", "ConfigError", "Settings", "load_settings", "settings_command"]

ENV_PREFIX = "SPECSCHED_"

_USAGE_EXIT_CODE = 2


class ConfigError(ValueError):
    """Options that cannot be used; the message names each value and what is accepted."""


class Settings(BaseSettings):
    """Base of a process's options: immutable, unknown names refused, read from SPECSCHED_*."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
    )


S = TypeVar("S", bound=Settings)


def load_settings(settings: type[S], flags: Mapping[str, object]) -> S:
    """Combine flags (None: not given) with the environment and the defaults.

    Raises ConfigError naming every offending option, its value and what is accepted.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return settings(**given)
    except ValidationError as error:
        lines = [_describe(detail, settings) for detail in error.errors(include_url=False)]
        raise ConfigError("; ".join(lines)) from None


def settings_command(
    settings: type[S], run: Callable[[S], int], *, doc: str
) -> Callable[..., None]:
    """Make a typer command function with one flag per field of `settings`.

    It loads the settings, calls `run` with them and exits with its result; a ConfigError is printed
    to stderr and exits with 2.
    """

    def command(**flags: object) -> None:
        try:
            loaded = load_settings(settings, flags)
        except ConfigError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(_USAGE_EXIT_CODE) from None
        raise typer.Exit(run(loaded))

    parameters = [_parameter(name, field) for name, field in settings.model_fields.items()]
    # typer reads both: the signature for order and defaults, the annotations for the types.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    command.__doc__ = doc
    return command


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    default = field.get_default(call_default_factory=True)
    option = typer.Option(
        help=f"{field.description} (env {ENV_PREFIX}{name.upper()})",
        show_default="none" if default is None else str(default),
    )
    # None stands for "not given", so that the environment and the default keep their turn.
    field_type: Any = field.annotation
    annotation = Annotated[field_type | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _describe(detail: ErrorDetails, settings: type[Settings]) -> str:
    name = str(detail["loc"][0]) if detail["loc"] else ""
    reason = detail["msg"].removeprefix("Value error, ")
    if not name:
        return reason
    source = f"--{name.replace('_', '-')} or {ENV_PREFIX}{name.upper()}"
    field = settings.model_fields.get(name)
    accepted = _accepted_range(field) if field else ""
    return f"{name} = {detail['input']!r} ({source}): {reason[:1].lower()}{reason[1:]}{accepted}"


def _accepted_range(field: FieldInfo) -> str:
    """The bounds of a number, e.g. "; accepted: >= 1 and <= 16"; empty where it has none."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{sign} {getattr(constraint, attribute)}"
        for constraint in field.metadata
        for attribute, sign in signs.items()
        if getattr(constraint, attribute, None) is not None
    ]
    return f"; accepted: {' and '.join(bounds)}" if bounds else ""
