"""Options and fixtures of the whole suite."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import specsched_executor  # noqa: F401 -- sets up OpenMP, which has to precede torch
import torch

if not torch.cuda.is_available():
    # Triton reads it when a kernel is defined, so before any test imports one: device code then
    # runs in Triton's interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")


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
