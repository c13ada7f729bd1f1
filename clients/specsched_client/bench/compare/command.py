"""`specsched bench compare`."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from specsched_client.cli._options import JsonOption

__all__ = ["compare"]


def compare(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="JSON that `bench serve --output` or `bench sweep` wrote. Of one file the variants"
            " are compared; of several each with the first."
        ),
    ],
    *,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Draw throughput against interactivity, budget and ratios against concurrency into"
            " this folder, as PNG and SVG. Needs matplotlib."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare results of earlier measurements: ratios paired by round, with 95 % intervals."""
    from specsched_client.bench.figures import draw_figures, require_matplotlib

    from .pairing import compare_results, machines_differ
    from .result_file import read_results
    from .table import METHOD, comparison_table

    if figures is not None:
        require_matplotlib()
    files = read_results(results)
    comparisons = compare_results(files)
    drawn = draw_figures(files, figures) if figures is not None else []
    if json:
        document = {
            "method": METHOD,
            "machines_differ": machines_differ(files),
            "comparisons": [each.document() for each in comparisons],
            "figures": [str(path) for path in drawn],
        }
        typer.echo(json_module.dumps(document, indent=2, allow_nan=False))
        return
    from specsched_protocol.console import to_stdout

    console = to_stdout()
    console.print(comparison_table(comparisons))
    console.print(METHOD)
    if len(files) > 1:
        console.print("Rounds of different files did the same work, at different times.")
    if machines_differ(files):
        console.print("The files are from different machines: their ratios are the machines', too.")
    for path in drawn:
        console.print(f"drew {path}")
