"""Which sweeps are run, in order of worth: a TOML file with a table [[part]] for each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["Part", "PlanError", "read_plan"]

ROOT = Path(__file__).resolve().parents[2]


class PlanError(ValueError):
    """A plan cannot be run; the message names the file and what is wrong."""


class Part(BaseModel):
    """One sweep; the options are those of `specsched bench sweep`.

    prompts: files whose lines are taken in turn, relative to the checkout. max_seconds: of the
    sweep. settle_seconds, half_width: None: as the command has it. fixed: draft lengths; none: all.
    scheduler_options: of the scheduler that decides; where they differ from those of the part
    before, another one is started, which has learned nothing. {output} in them is the folder of all
    results.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"[a-z0-9_-]+")
    prompts: tuple[str, ...] = Field(min_length=1)
    concurrency: tuple[int, ...] = Field(min_length=1)
    max_seconds: float = Field(gt=0)
    temperature: float = Field(1.0, ge=0)
    max_tokens: int = Field(128, ge=2)
    round_seconds: float = Field(1.0, gt=0)
    settle_seconds: float | None = Field(None, ge=0)
    half_width: float | None = Field(None, gt=0)
    every_setting: bool = False
    clients: int = Field(1, ge=1)
    fixed: tuple[int, ...] = ()
    against: tuple[str, ...] = ()
    scheduler_options: tuple[str, ...] = ()
    policy: str = "throughput"
    seed: int | None = None
    min_repeats: int = 4
    max_repeats: int = 40

    def options(self, directory: Path) -> list[str]:
        """Of `specsched bench sweep`, with its result in `directory`."""
        prompts = directory / "prompts.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        prompts.write_text("".join(f"{line}\n" for line in self._prompt_lines()))
        options = ["--prompts", str(prompts), "--output", str(directory), "--ignore-eos"]
        for name in (
            *("max_seconds", "temperature", "max_tokens", "round_seconds", "clients"),
            *("policy", "min_repeats", "max_repeats"),
        ):
            options += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        for name in ("settle_seconds", "half_width", "seed"):
            if (value := getattr(self, name)) is not None:
                options += [f"--{name.replace('_', '-')}", str(value)]
        for name in ("concurrency", "fixed", "against"):
            for value in getattr(self, name):
                options += [f"--{name}", str(value)]
        return [*options, "--every-setting"] if self.every_setting else options

    def options_of_scheduler(self, output: Path) -> tuple[str, ...]:
        """For the scheduler that decides; `output` is the folder of all results."""
        return tuple(each.replace("{output}", str(output)) for each in self.scheduler_options)

    def _prompt_lines(self) -> Iterator[str]:
        """One line of each file in turn, until the first ends."""
        files = [(ROOT / name).read_text(encoding="utf-8").splitlines() for name in self.prompts]
        for lines in zip(*files, strict=False):
            yield from lines


def read_plan(path: Path, names: Sequence[str] | None = None) -> list[Part]:
    """The parts of a plan, or those named; PlanError for what cannot be run."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("part", [])
        parts = [Part.model_validate(table) for table in tables]
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise PlanError(f"{path}: {error}") from error
    if not parts:
        raise PlanError(f"{path}: no part; accepted: a table [[part]] for each sweep")
    if len({part.name for part in parts}) < len(parts):
        raise PlanError(f"{path}: two parts have one name")
    known = [part.name for part in parts]
    if unknown := set(names or ()) - set(known):
        raise PlanError(f"--part {', '.join(sorted(unknown))}; accepted: {', '.join(known)}")
    return [part for part in parts if not names or part.name in names]
