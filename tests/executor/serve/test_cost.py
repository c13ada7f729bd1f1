"""What becomes of a measured step cost at the start of an executor."""

from __future__ import annotations

from pathlib import Path

import pytest
from specsched_executor.config import ExecutorConfig
from specsched_executor.model import load_model
from specsched_executor.profiling import CostProfile
from specsched_executor.serve import cost
from specsched_executor.serve.sizes import engine_config
from specsched_protocol.run_dir import RunDir
from structlog.testing import capture_logs

from tests.integration.tiny_checkpoint import write_tiny_checkpoint


class Start:
    """Starts of executors with one folder for what they measure; the measuring is played."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = write_tiny_checkpoint(folder / "tiny")
        self.config = ExecutorConfig(
            model=model, drafter="ngram", profile_dir=folder / "kept", run_dir=folder / "run"
        )
        self._loaded = load_model(model)
        self.num_measured = self.num_waits = 0
        self.is_disturbed = False
        monkeypatch.setattr(cost, "profile_model", self._measure)
        monkeypatch.setattr(cost, "let_schedulers_compile", self._wait)

    def _wait(self, run_dir: RunDir, max_wait_s: float) -> None:
        assert (run_dir.root, max_wait_s) == (self.config.run_dir, self.config.compile_wait_s)
        assert self.num_waits == self.num_measured
        self.num_waits += 1

    def _measure(self, model, options, mark, **arguments) -> CostProfile:
        self.num_measured += 1
        sizes = options.sizes
        samples = {size: (float(size),) for size in sizes}
        context = dict.fromkeys(sizes, 0)
        return CostProfile(samples, context, 0, mark, is_disturbed=self.is_disturbed)

    def __call__(self) -> list[dict]:
        """The log; the cost is in `message`."""
        sizes = engine_config(self.config, self._loaded.config)
        with capture_logs() as logs:
            self.message = cost.cost_message(self.config, self._loaded, sizes)
        return logs


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(tmp_path, monkeypatch)


def test_a_sound_profile_is_kept_for_the_next_start(start: Start) -> None:
    known = start()[-1]
    assert (known["event"], known["measured"], known["disturbed"]) == (
        "step cost known",
        True,
        False,
    )
    first = start.message
    assert start()[-1]["measured"] is False
    assert start.message == first
    assert (start.num_waits, start.num_measured) == (1, 1)


def test_a_profile_of_a_busy_machine_is_told_used_and_not_kept(start: Start) -> None:
    start.is_disturbed = True
    logs = start()
    (warning,) = (each for each in logs if each["log_level"] == "warning")
    assert warning["event"] == "step cost measured on a busy machine"
    assert logs[-1]["disturbed"] is True
    assert start.message.disturbed
    assert start.message.verify
    start.is_disturbed = False
    start()
    assert not start.message.disturbed
    start()
    assert start.num_measured == 2


def test_a_scheduler_in_the_same_process_is_not_waited_for(start: Start) -> None:
    start.config = start.config.model_copy(update={"scheduler": "in-process"})
    start()
    assert (start.num_waits, start.num_measured) == (0, 1)
