"""The verdict of a sweep as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specsched_client.bench.figures import along_concurrency, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_verdicts"]

_SIZE_INCHES: Final = (8.0, 4.5)
Point = tuple[int, Mapping[str, float]]


def draw_verdicts(document: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw verdict.png and verdict.svg of a sweep's JSON: the policy to each setting, by load.

    What the policy is compared with as a whole, the best static setting chosen on the other half of
    the repeats, has its intervals; single settings are lines. Raises MissingDependencyError.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    results = sorted(document["results"], key=_users)  # measured in any order
    for name in results[0]["verdict"]["scheduled_to_static"]:
        points = [(_users(r), r["verdict"]["scheduled_to_static"][name]) for r in results]
        axes.plot([x for x, _ in points], [p["mean"] for _, p in points], lw=1, label=f"to {name}")
    best = [(_users(r), r["verdict"]["best_static"]["scheduled_to_best"]) for r in results]
    _draw_best(axes, best)
    axes.axhline(1.0, color="0.7", linewidth=1)
    along_concurrency(axes)
    axes.set_ylabel(f"{document['settings']['policy']}, ratio of tokens/s")
    axes.grid(alpha=0.3)
    figure.legend(fontsize="small", loc="outside right upper")
    paths = [directory / f"verdict.{kind}" for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path)
    return paths


def _draw_best(axes: Axes, points: Sequence[Point]) -> None:
    means = [ratio["mean"] for _, ratio in points]
    below = [ratio["mean"] - ratio["low"] for _, ratio in points]
    above = [ratio["high"] - ratio["mean"] for _, ratio in points]
    axes.errorbar(
        [x for x, _ in points],
        means,
        [below, above],
        fmt="o-",
        color="black",
        linewidth=2,
        capsize=4,
        label="to the best other\nsetting, 95 %",
    )


def _users(result: Mapping[str, Any]) -> int:
    return int(result["load"]["concurrency"])
