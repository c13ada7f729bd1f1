"""Comparisons as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from specsched_client.bench.table import ratio_text

from .pairing import Comparison

__all__ = ["METHOD", "comparison_table"]

METHOD = (
    "Ratios of tokens per second are taken round by round: geometric mean and 95 % interval, "
    "Student's t on the logarithms."
)


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """One row per load and pair. Files are named only where there are several."""
    names_files = not all(each.is_one_session for each in comparisons)
    table = Table("load", "compared", "with", caption_justify="left")
    table.add_column("ratio (95 %)", justify="right")
    table.add_column("rounds", justify="right")
    for each in comparisons:
        sides = [
            f"{side.file}: {side.variant}" if names_files else side.variant
            for side in (each.compared, each.baseline)
        ]
        table.add_row(str(each.load), *sides, ratio_text(each.ratio), str(each.ratio.num_pairs))
    return table
