"""What a scheduler process finds out of an executor told wrong costs, with a drafter that boasts.

What it learned is read with the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specsched_client.cli._main import app
from typer.testing import CliRunner

from tests.integration.boasting_executor import (
    BASE_S,
    CLAIMED,
    NUM_REQUESTS,
    ROW_S,
    K,
    Watch,
    serving,
)
from tests.integration.processes import SchedulerProcess, start_scheduler, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    with start_scheduler(tmp_path / "run") as process:
        yield process


def command(*arguments: str) -> Any:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def learned(target: str) -> Any:
    (attachment,) = json.loads(command("cost", "show", "--json", "--scheduler", target))[
        "attachments"
    ]
    return attachment


def test_boasts_and_wrong_costs_are_found_out(scheduler: SchedulerProcess, tmp_path: Path) -> None:
    with serving(tmp_path / "run") as executor:
        wait_until(lambda: bool(executor.attacher.attachments()))
        watch = Watch(scheduler.target)
        executor.answer(30)
        first = learned(scheduler.target)
        early = list(watch.decisions)
        assert not first["cost"]["in_use"]
        assert executor.transport.calibration() is None

        last: dict[str, Any] = {}
        late: list[Any] = []

        def has_settled() -> bool:
            """Whether all of a round was decided by what is true; the first fits need not be."""
            num_before = len(watch.decisions)
            executor.answer(90)
            last.update(learned(scheduler.target))
            late[:] = watch.decisions[num_before:]
            size = next(s for s in last["cost"]["sizes"] if s["tokens"] == 16)
            position = last["sampled"]["positions"][0]
            error = abs(position["calibrated_share"] - position["accepted_share"])
            return (
                last["cost"]["in_use"]
                and position["intercept"] != 0.0
                and error < 0.05
                and max(each.expected_tokens for each in late) < NUM_REQUESTS * (1 + 0.8 * K)
                and size["corrected_ms"] > 0.9e3 * (BASE_S + 16 * ROW_S)
                and min(each.expected_ms for each in late) > 1e3 * BASE_S
            )

        wait_until(has_settled, timeout_s=120)
        shown = command("cost", "show", "--scheduler", scheduler.target)
        drawn = command("calibration", "show", "--scheduler", scheduler.target)

        # What a step of all drafts takes: said to be BASE_S.
        assert max(each.expected_ms for each in early) == pytest.approx(1e3 * BASE_S)
        sizes = {each["tokens"]: each for each in last["cost"]["sizes"]}
        assert sizes[16]["profiled_ms"] == 1e3 * BASE_S
        assert sizes[16]["corrected_ms"] > 0.9e3 * (BASE_S + 16 * ROW_S)
        # What drafts are worth: said to be 0.95.
        position = last["sampled"]["positions"][0]
        assert position["raw_share"] == pytest.approx(CLAIMED, abs=0.01)
        assert position["accepted_share"] < 0.8
        assert position["calibrated_share"] == pytest.approx(position["accepted_share"], abs=0.06)
        assert last["greedy"]["num_drafts"] == "0"
        # So decisions expect less of more time, and the executor ranks by the same calibration.
        assert max(each.expected_tokens for each in early) > NUM_REQUESTS * (1 + 0.9 * K)
        assert max(each.expected_tokens for each in late) < NUM_REQUESTS * (1 + 0.8 * K)
        assert min(each.expected_ms for each in late) > 1e3 * BASE_S
        ranking = executor.transport.calibration()
        assert ranking is not None
        assert float(ranking.intercept[1, 0]) == pytest.approx(position["intercept"], abs=0.5)
    assert "corrected" in shown
    assert "sampled" in drawn
