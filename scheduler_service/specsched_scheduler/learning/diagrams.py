"""Reliability diagrams. Needs matplotlib (extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specsched_scheduler.learning.calibration.offline import PositionReport, TraceFit
from specsched_scheduler.learning.calibration.reliability import ReliabilityBin

__all__ = ["reliability_figure"]

_INCHES = 2.6


def reliability_figure(fits: Mapping[str, TraceFit]) -> Figure:
    """One row of diagrams per sampling class, one diagram per position, raw and calibrated."""
    num_positions = max(len(fit.positions) for fit in fits.values())
    figure = Figure(figsize=(_INCHES * num_positions, _INCHES * len(fits) + 0.6))
    axes = figure.subplots(len(fits), num_positions, squeeze=False, sharex=True, sharey=True)
    for row, (name, fit) in zip(axes, fits.items(), strict=True):
        for report, each in zip(fit.positions, row, strict=True):
            _draw(each, report)
        row[0].set_ylabel(f"{name}: share accepted")
    figure.supxlabel("predicted survival, on held-out requests")
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    return figure


def _draw(axes: Axes, report: PositionReport) -> None:
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=1)
    _line(axes, report.raw, "raw", "o--")
    _line(axes, report.calibrated, "calibrated", "s-")
    axes.set_title(
        f"position {report.position}: {report.error_raw:.1%} to {report.error_calibrated:.1%}",
        fontsize="small",
    )


def _line(axes: Axes, bins: list[ReliabilityBin], label: str, style: str) -> None:
    predicted = [each.predicted for each in bins]
    observed = [each.observed for each in bins]
    axes.plot(predicted, observed, style, label=label, markersize=3, linewidth=1)
