"""Results of `bench serve` and `bench sweep`, read back from their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from specsched_client._errors import InvalidRequestError
from specsched_client.bench.load import ClosedLoop, OpenLoop
from specsched_client.bench.summary import Summary
from specsched_client.bench.validation import first_error

__all__ = ["MeasuredLoad", "MeasuredVariant", "ResultFile", "read_results"]


_SPEED_RANGE: Final = (1e-9, 1e12)
"""Tokens per second. Beyond it nothing is measured, and intervals of ratios leave float64."""


class _Part(BaseModel):
    """What is read of a result; other fields are passed over."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class MeasuredRound(_Part):
    """A round. Rounds of equal `repeat` ran next to each other, with the same requests."""

    repeat: int
    tokens_per_s: float = Field(ge=_SPEED_RANGE[0], le=_SPEED_RANGE[1])


class MeasuredVariant(_Part):
    """All rounds of one variant under one load."""

    summary: Summary
    rounds: tuple[MeasuredRound, ...] = Field(min_length=1)

    @field_validator("rounds")
    @classmethod
    def _once(cls, rounds: tuple[MeasuredRound, ...]) -> tuple[MeasuredRound, ...]:
        if len({one.repeat for one in rounds}) < len(rounds):
            raise ValueError("a repeat is there twice")
        return rounds

    @property
    def speeds(self) -> dict[int, float]:
        """Repeat -> tokens per second."""
        return {one.repeat: one.tokens_per_s for one in self.rounds}


class MeasuredLoad(_Part):
    """One load; `baseline` is one of the variants."""

    load: ClosedLoop | OpenLoop
    baseline: str
    variants: Mapping[str, MeasuredVariant] = Field(min_length=1)


class _Document(_Part):
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    results: tuple[MeasuredLoad, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A result. label: what it is called beside others, its path as far as needed."""

    label: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    results: tuple[MeasuredLoad, ...]


def read_results(paths: Sequence[Path]) -> list[ResultFile]:
    """Raises InvalidRequestError naming the file and what is wrong in it."""
    return [_read(path, label) for path, label in zip(paths, _labels(paths), strict=True)]


def _read(path: Path, label: str) -> ResultFile:
    try:
        document = _Document.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidRequestError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise InvalidRequestError(
            f"{path}: no result of `bench serve` or `bench sweep`: {first_error(error)}"
        ) from error
    for each in document.results:
        if each.baseline not in each.variants:
            raise InvalidRequestError(f"{path}: baseline {each.baseline!r} is none of the variants")
    return ResultFile(label, document.machine, document.settings, document.results)


def _labels(paths: Sequence[Path]) -> list[str]:
    stems = [path.stem for path in paths]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
