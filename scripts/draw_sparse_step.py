"""Draw what a step of sparse latent attention costs, ragged against uniform, from its raw file.

python -m scripts.draw_sparse_step docs/benchmarks/raw/sparse_model.nvidia-h200.json FIGURE.svg
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import typer
from matplotlib.figure import Figure

__all__ = ["draw"]

_KINDS = {"uniform": "o", "ragged": "x"}


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Median step times by requests, and the ratio of both kinds with that of 1.03 marked."""
    median_ms = {
        kind: {row["requests"]: row["p50"] / 1e3 for row in results if row["kind"] == kind}
        for kind in _KINDS
    }
    requests = sorted(median_ms["uniform"])
    figure = Figure(figsize=(6.0, 4.5), layout="constrained")
    times, ratios = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    for kind, marker in _KINDS.items():
        times.plot(requests, [median_ms[kind][n] for n in requests], marker=marker, label=kind)
    times.set(ylabel="step, ms", ylim=(0, None))
    times.legend()
    ratios.plot(
        requests, [median_ms["ragged"][n] / median_ms["uniform"][n] for n in requests], marker="."
    )
    ratios.axhline(1.03, color="0.5", linestyle="--", linewidth=1)
    ratios.set(
        xscale="log",
        xlabel="requests of four rows each, in the mean",
        ylabel="ragged / uniform",
        ylim=(0.95, 1.05),
    )
    ratios.set_xticks(requests, labels=[str(n) for n in requests])
    ratios.minorticks_off()
    with mpl.rc_context({"svg.hashsalt": path.name}):  # the same file from the same numbers
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _main(
    raw: Annotated[Path, typer.Argument(exists=True, help="What the bench recorded")],
    figure: Annotated[Path, typer.Argument(help="Where to draw it: .svg or .png")],
) -> None:
    """Draw the figure."""
    draw(json.loads(raw.read_text())["results"], figure)


if __name__ == "__main__":
    typer.run(_main)
