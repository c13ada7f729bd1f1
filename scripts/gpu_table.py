"""One table of the measurements in a folder of bench records."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

_FILE_WIDTH: Final = 150
"""Characters of a line where nobody's terminal bounds it."""


def rows_of(record: dict[str, Any]) -> Iterator[tuple[str, str, str, float]]:
    """Bench, case, what was timed, its median; one row per time of a case."""
    for result in record["results"]:
        times = {key: value for key, value in result.items() if isinstance(value, dict)}
        case = " ".join(f"{key}={value}" for key, value in result.items() if key not in times)
        for key, statistics in times.items():
            if "p50" in statistics:
                yield record["bench"], case, key, float(statistics["p50"])


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 where the folder holds no record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where `--bench-dir` had records written")
    folder = parser.parse_args(arguments).folder
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    paths = sorted(folder.glob("*.json"))
    if not paths:
        console.print(f"{folder} holds no record: is there a GPU that torch can see?")
        return 1
    table = Table("bench", "case", "time", "median", title="Medians on this machine")
    for path in paths:
        for bench, case, key, median in rows_of(json.loads(path.read_text(encoding="utf-8"))):
            table.add_row(bench, case, key, f"{median:.4g}")
    console.print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
