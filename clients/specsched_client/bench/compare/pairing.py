"""Ratios between measurements, paired by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Final

from specsched_client._errors import InvalidRequestError
from specsched_client.bench.load import Load
from specsched_client.bench.statistics import Ratio, paired_ratio

from .result_file import MeasuredLoad, MeasuredVariant, ResultFile

__all__ = ["Comparison", "Side", "compare_results", "machines_differ"]

_WORK: Final = (
    "prompts_sha256",
    "num_prompts",
    "num_requests",
    "max_tokens",
    "temperature",
    "seed",
    "ignore_eos",
)
"""Settings that decide what is asked; ratios are between rounds of the same work only."""


@dataclass(frozen=True, slots=True)
class Side:
    """A variant of a file."""

    file: str
    variant: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tokens per second of `compared` over those of `baseline`, under one load, paired by round.

    Rounds of one file ran side by side; those of two did the same work at different times.
    """

    load: Load
    compared: Side
    baseline: Side
    ratio: Ratio

    @property
    def is_one_session(self) -> bool:
        """Whether both sides ran side by side."""
        return self.compared.file == self.baseline.file

    def document(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "load": {"kind": type(self.load).__name__, **asdict(self.load)},
            "compared": asdict(self.compared),
            "baseline": asdict(self.baseline),
            "is_one_session": self.is_one_session,
            "ratio": {**asdict(self.ratio), "half_width": self.ratio.half_width},
        }


def compare_results(files: Sequence[ResultFile]) -> list[Comparison]:
    """Of one file each variant with its baseline; of several each later file with the first.

    Two files are compared where load and name of the variant are the same, or where each has one
    variant only. Raises InvalidRequestError where they did different work or share nothing.
    """
    if len(files) == 1:
        return [each for load in files[0].results for each in _within(files[0], load)]
    first, *others = files
    found: list[Comparison] = []
    for other in others:
        _require_same_work(first, other)
        pairs = list(_between(first, other))
        if not pairs:
            raise InvalidRequestError(f"{first.label} and {other.label} share no load and variant")
        found += pairs
    return found


def machines_differ(files: Sequence[ResultFile]) -> bool:
    """Whether some were measured on another machine."""
    return any(one.machine != other.machine for one, other in combinations(files, 2))


def _within(file: ResultFile, measured: MeasuredLoad) -> Iterator[Comparison]:
    base = measured.variants[measured.baseline]
    baseline = Side(file.label, measured.baseline)
    for name, variant in measured.variants.items():
        if name != measured.baseline and (ratio := _ratio(variant, base)):
            yield Comparison(measured.load, Side(file.label, name), baseline, ratio)


def _between(first: ResultFile, other: ResultFile) -> Iterator[Comparison]:
    others = {str(each.load): each for each in other.results}
    for base in first.results:
        if (compared := others.get(str(base.load))) is None:
            continue
        for base_name, name in _common(base.variants, compared.variants):
            ratio = _ratio(compared.variants[name], base.variants[base_name])
            if ratio:
                sides = Side(other.label, name), Side(first.label, base_name)
                yield Comparison(base.load, *sides, ratio)


def _common(
    base: Mapping[str, MeasuredVariant], compared: Mapping[str, MeasuredVariant]
) -> list[tuple[str, str]]:
    if len(base) == len(compared) == 1:
        return [(next(iter(base)), next(iter(compared)))]
    return [(name, name) for name in base if name in compared]


def _ratio(variant: MeasuredVariant, base: MeasuredVariant) -> Ratio | None:
    speeds, bases = variant.speeds, base.speeds
    repeats = sorted(speeds.keys() & bases.keys())
    if not repeats:
        return None
    return paired_ratio([speeds[each] for each in repeats], [bases[each] for each in repeats])


def _require_same_work(first: ResultFile, other: ResultFile) -> None:
    for name in _WORK:
        asked, here = first.settings.get(name), other.settings.get(name)
        if asked != here:
            raise InvalidRequestError(
                f"{other.label} did other work than {first.label}: {name} is {here}, not {asked};"
                " accepted: files of the same prompts, lengths, temperature and seed"
            )
