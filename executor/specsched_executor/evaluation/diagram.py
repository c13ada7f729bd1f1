"""Reliability diagrams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["draw_reliability"]


def draw_reliability(report: dict[str, Any], path: Path) -> None:
    """Predicted survival against the share that survived, raw and calibrated, as a picture."""
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
    figure.savefig(path)
