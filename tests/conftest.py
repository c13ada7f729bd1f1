"""Options and fixtures of the whole suite."""

from __future__ import annotations

import random

import numpy as np
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--bench-dir`."""
    parser.addoption(
        "--bench-dir",
        default=None,
        help="where benches write their JSON (default: docs/benchmarks/raw)",
    )


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test starts from the same global random state, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
