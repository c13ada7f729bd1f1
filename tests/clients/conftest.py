"""An executor that answers at once, served on loopback, and the command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from specsched_client.cli import main

from tests.executor.gateway.fakes import AnsweringEngine, serving_in_thread

ANSWER = (3, 4, 5, 6)
"""hello world good bye"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def engine() -> AnsweringEngine:
    return AnsweringEngine(lambda _: ANSWER)


@pytest.fixture
def target(engine: AnsweringEngine) -> Iterator[str]:
    with serving_in_thread(engine) as address:
        yield address


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run the command line in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("SPECSCHED_RUN_DIR", str(tmp_path / "run"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["specsched", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run
