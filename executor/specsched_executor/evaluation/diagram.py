"""Reliability diagrams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["reliability_figure"]


def reliability_figure(report: dict[str, Any]) -> Figure:
    """Predicted survival against the share that survived, raw and calibrated."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for kind in ("raw", "calibrated"):
        bins = report.get(kind, {}).get("reliability", ())
        if bins:
            predicted = [each["predicted"] for each in bins]
            axes.plot(predicted, [each["observed"] for each in bins], marker="o", label=kind)
    axes.set(xlabel="predicted survival", ylabel="share that survived", xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    return figure
