"""What the benches share: the `record_bench` fixture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.bench.recording import RAW_DIRECTORY, REPOSITORY, write_record

RecordBench = Callable[..., Path]


@pytest.fixture
def record_bench(request: pytest.FixtureRequest) -> RecordBench:
    """`record_bench(name, results, **settings)`: write docs/benchmarks/raw/<name>.<machine>.json.

    The command in the file repeats just the bench that called.
    """
    directory = request.config.getoption("--bench-dir")
    module = Path(str(request.node.path)).relative_to(REPOSITORY)

    def record(bench: str, results: Sequence[Mapping[str, Any]], **settings: Any) -> Path:
        path = write_record(
            bench,
            results,
            settings=settings,
            command=f"make bench BENCH={module}",
            directory=Path(directory) if directory else RAW_DIRECTORY,
        )
        print(f"\nrecorded {path}")
        return path

    return record
