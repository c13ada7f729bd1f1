"""Step times of a soak's phases, from the executor's log."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from scripts.soak.step_times import Span, step_times


def write_log(path, steps):
    """steps: (second, ms) pairs; None: one whose line is not whole."""
    together = '{"event": "step", "ms": 9.0}{"event": "request"}'
    lines = ["not a line of ours", together, json.dumps({"event": "serving", "port": 1})]
    for step_id, step in enumerate(steps):
        if step is None:
            lines.append('{"event": "step", "step_id"{"event": "request"}')
            continue
        second, ms = step
        stamp = dt.datetime.fromtimestamp(second, dt.UTC).isoformat().replace("+00:00", "Z")
        lines.append(
            json.dumps({"step_id": step_id, "ms": ms, "event": "step", "timestamp": stamp})
        )
    path.write_text("\n".join(lines) + '\n{"event": "step", "cut sho')
    return path


def test_intervals_lie_within_one_phase_and_are_compared_with_the_quiet_ones(tmp_path):
    steps = [(100 + 0.002 * i, 1.0) for i in range(50)]
    steps += [(200 + 0.004 * i, 3.0) for i in range(50)]
    steps += [(300 + 0.002 * i, 1.0) for i in range(50)]
    spans = [Span("quiet", 100, 101), Span("swap", 200, 201), Span("quiet", 300, 301)]
    found = step_times(write_log(tmp_path / "executor.log", steps), spans)
    assert found["quiet"]["num_steps"] == 2 * 49
    assert found["swap"]["interval_ms"]["p50"] == pytest.approx(4.0, abs=1e-3)
    assert found["quiet"]["interval_ms"]["max"] == pytest.approx(2.0, abs=1e-3)
    assert found["swap"]["p99_to_quiet"] == pytest.approx(
        {"interval": 2.0, "device": 3.0}, abs=0.01
    )
    assert found["swap"]["p99_to_quiet_95"] == pytest.approx([2.0, 2.0], abs=0.01)
    assert found["quiet"]["p99_to_quiet"] == pytest.approx({"interval": 1.0, "device": 1.0})


def test_no_interval_is_taken_across_a_line_that_ran_together_with_another(tmp_path):
    steps = [(100 + 0.002 * i, 1.0) if i % 10 else None for i in range(51)]
    found = step_times(write_log(tmp_path / "executor.log", steps), [Span("quiet", 100, 101)])
    assert found["quiet"]["num_steps"] == 5 * 8
    assert found["quiet"]["interval_ms"]["max"] == pytest.approx(2.0, abs=1e-3)
    assert found["quiet"]["seconds"] == 1.0


def test_a_kind_of_phase_without_steps_has_no_figures(tmp_path):
    log = write_log(tmp_path / "executor.log", [(100 + 0.002 * i, 1.0) for i in range(50)])
    assert list(step_times(log, [Span("quiet", 100, 101), Span("kill", 500, 501)])) == ["quiet"]
