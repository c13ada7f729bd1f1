"""Measurements as pictures, each as PNG and as SVG. Drawing needs matplotlib (extra `plot`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from specsched_protocol import picture

from specsched_client._errors import InvalidRequestError
from specsched_client._pictures import picture_errors

from .compare.pairing import Comparison, compare_results
from .compare.result_file import MeasuredVariant, ResultFile
from .load import ClosedLoop, Load

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "along_concurrency",
    "budget_per_request",
    "build_figures",
    "draw_figures",
    "require_matplotlib",
]

_FORMATS: Final = ("png", "svg")
_SIZE_INCHES: Final = (7.0, 4.5)

Curve = list[tuple[Load, MeasuredVariant]]
_C = TypeVar("_C")


def require_matplotlib() -> None:
    """Raises MissingDependencyError where it is not installed."""
    with picture_errors():
        picture.require_matplotlib("drawing figures")


def draw_figures(files: Sequence[ResultFile], directory: Path) -> list[Path]:
    """Draw `build_figures` into a folder; returns the files.

    Raises MissingDependencyError without matplotlib, InvalidRequestError where nothing can be
    written there and for files that cannot be compared.
    """
    require_matplotlib()
    figures = build_figures(files)
    paths = {directory / f"{name}.{kind}": name for name in figures for kind in _FORMATS}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, name in paths.items():
            figures[name].savefig(path)
    except OSError as error:
        raise InvalidRequestError(f"{error.filename}: {error.strerror}") from error
    return list(paths)


def build_figures(files: Sequence[ResultFile]) -> dict[str, Figure]:
    """Throughput against interactivity; budget and ratios against concurrency; by name."""
    curves, ratios = dict(_curves(files)), _ratio_curves(compare_results(files))
    return {
        "throughput": _figure(curves, _draw_throughput, bottom=0.0),
        "budget": _figure(curves, _draw_budget, bottom=0.0),
        "ratios": _figure(ratios, _draw_ratios),
    }


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


def _ratio_curves(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    curves: dict[str, list[Comparison]] = {}
    for each in comparisons:
        sides = (each.compared, each.baseline)
        names = [s.variant if each.is_one_session else f"{s.file}: {s.variant}" for s in sides]
        curves.setdefault(" / ".join(names), []).append(each)
    return curves


def _figure(
    curves: Mapping[str, _C], draw: Callable[[Axes, str, _C], None], bottom: float | None = None
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    for label, curve in curves.items():
        draw(axes, label, curve)
    axes.set_ylim(bottom=bottom)  # once all is drawn: it ends the fitting of the upper end
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        for text in axes.legend(fontsize="small").get_texts():
            text.set_parse_math(False)
    return figure


def _draw_throughput(axes: Axes, label: str, curve: Curve) -> None:
    axes.set(xlabel="tokens/s of one user, median", ylabel="tokens/s of all")
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
    axes.set(ylabel="drafts allowed per request and step")
    points = [
        (load.concurrency, budget)
        for load, variant in curve
        if isinstance(load, ClosedLoop) and (budget := budget_per_request(variant)) is not None
    ]
    if points:
        points.sort()  # measured in any order
        along_concurrency(axes)
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", label=label)


def _draw_ratios(axes: Axes, label: str, curve: list[Comparison]) -> None:
    axes.set(ylabel="ratio of tokens/s, 95 % interval")
    points = [
        (each.load.concurrency, each.ratio) for each in curve if isinstance(each.load, ClosedLoop)
    ]
    if not points:
        return
    points.sort(key=lambda point: point[0])
    means = [ratio.mean for _, ratio in points]
    # Where there is one round only, nothing is known of the spread.
    below = [0.0 if ratio.low is None else ratio.mean - ratio.low for _, ratio in points]
    above = [0.0 if ratio.high is None else ratio.high - ratio.mean for _, ratio in points]
    along_concurrency(axes)
    axes.axhline(1.0, color="0.7", linewidth=1)
    axes.errorbar([x for x, _ in points], means, [below, above], fmt="o-", capsize=3, label=label)


def along_concurrency(axes: Axes) -> None:
    """Have the x axis count users, by powers of two."""
    from matplotlib.ticker import NullLocator, StrMethodFormatter

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("concurrency")
