"""Where the packages of the project are, for the tests that look at its source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "specsched_protocol": ROOT / "protos",
    "specsched_scheduler": ROOT / "scheduler_service",
    "specsched_executor": ROOT / "executor",
    "specsched_kernels": ROOT / "kernels",
    "specsched_client": ROOT / "clients",
}


def sources(package: str) -> Iterator[Path]:
    """Every hand-written module of `package`, generated stubs left out."""
    for path in sorted((PACKAGES[package] / package).rglob("*.py")):
        if "_pb2" not in path.name:
            yield path
