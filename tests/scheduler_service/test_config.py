"""Options of the scheduler that need what may not be installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import typer
from specsched_scheduler.commands import scheduler
from typer.testing import CliRunner


def test_a_trace_without_pyarrow_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find_spec(name)
    )
    app = typer.Typer()
    app.command()(scheduler)
    result = CliRunner().invoke(app, ["--trace-dir", str(tmp_path)])
    assert result.exit_code == 5
    assert "pip install 'specsched[trace]'" in result.stderr
