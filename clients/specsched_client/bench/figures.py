"""Measurements as pictures, each as PNG and as SVG. Drawing needs matplotlib (extra `plot`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specsched_client._errors import InvalidRequestError, MissingDependencyError

from .compare.result_file import MeasuredVariant, ResultFile
from .load import ClosedLoop, Load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["budget_per_request", "draw_figures", "require_matplotlib"]

_FORMATS: Final = ("png", "svg")
_SIZE_INCHES: Final = (7.0, 4.5)

Curve = list[tuple[Load, MeasuredVariant]]


def require_matplotlib() -> None:
    """Raises MissingDependencyError where it is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingDependencyError(
            "pictures need matplotlib, which is not installed: pip install 'specsched[plot]'"
        )


def draw_figures(files: Sequence[ResultFile], directory: Path) -> list[Path]:
    """Draw throughput against interactivity, and budget against concurrency; returns the files.

    Raises MissingDependencyError without matplotlib, InvalidRequestError where nothing can be
    written there.
    """
    require_matplotlib()
    curves = dict(_curves(files))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return [
            *_draw(curves, directory / "throughput", _draw_throughput),
            *_draw(curves, directory / "budget", _draw_budget),
        ]
    except OSError as error:
        raise InvalidRequestError(f"{error.filename}: {error.strerror}") from error


def budget_per_request(variant: MeasuredVariant) -> float | None:
    """Drafts that the budgets allowed, per request and step; None without the server's counts.

    Of a request's tokens in a step one is the bonus token and the others are accepted drafts.
    """
    counted = variant.summary.counted
    if counted is None:
        return None
    num_request_steps = counted.num_output_tokens - counted.num_accepted_tokens
    return counted.num_scheduled_tokens / num_request_steps if num_request_steps > 0 else None


def _curves(files: Sequence[ResultFile]) -> Iterator[tuple[str, Curve]]:
    for file in files:
        names = dict.fromkeys(name for result in file.results for name in result.variants)
        for name in names:
            label = f"{file.label}: {name}" if len(files) > 1 else name
            measured = [(each.load, each.variants.get(name)) for each in file.results]
            yield label, [(load, variant) for load, variant in measured if variant is not None]


def _draw(
    curves: dict[str, Curve], stem: Path, draw: Callable[[Axes, str, Curve], None]
) -> list[Path]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    for label, curve in curves.items():
        draw(axes, label, curve)
    axes.grid(alpha=0.3)
    if axes.has_data():
        axes.legend(fontsize="small")
    paths = [stem.with_suffix(f".{kind}") for kind in _FORMATS]
    for path in paths:
        figure.savefig(path)
    return paths


def _draw_throughput(axes: Axes, label: str, curve: Curve) -> None:
    axes.set(xlabel="tokens/s of one user, median", ylabel="tokens/s of all", ylim=(0, None))
    points = [
        (speeds.p50, variant.summary.tokens_per_s, load)
        for load, variant in curve
        if (speeds := variant.summary.tokens_per_s_per_user) is not None
    ]
    axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o-", label=label)
    for x, y, load in points:
        text = str(load.concurrency) if isinstance(load, ClosedLoop) else f"{load.rate_per_s:g}/s"
        axes.annotate(text, (x, y), textcoords="offset points", xytext=(4, 4), fontsize="x-small")


def _draw_budget(axes: Axes, label: str, curve: Curve) -> None:
    axes.set(xlabel="concurrency", ylabel="drafts allowed per request and step", ylim=(0, None))
    points = [
        (load.concurrency, budget)
        for load, variant in curve
        if isinstance(load, ClosedLoop) and (budget := budget_per_request(variant)) is not None
    ]
    if points:
        axes.set_xscale("log", base=2)
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", label=label)
