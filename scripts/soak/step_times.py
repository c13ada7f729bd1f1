"""What steps took in each phase of a soak, from the executor's log at level debug."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

__all__ = ["Span", "recorded", "step_times"]

_STEP: Final = '"event": "step"'
_QUIET: Final = "quiet"
_NAMES: Final = ("interval", "device")
_NUM_RESAMPLES: Final = 200

Phases = Sequence[np.ndarray[Any, Any]]
"""Of each phase its steps: [2, steps], interval and device time in ms."""


@dataclass(frozen=True, slots=True)
class Span:
    """A phase or a part of one; Unix seconds."""

    kind: str
    start_s: float
    end_s: float


@contextlib.contextmanager
def recorded(spans: list[Span], kind: str) -> Iterator[None]:
    """Adds to `spans` the time for which this is open."""
    start_s = time.time()
    yield
    spans.append(Span(kind, start_s, time.time()))


def step_times(log: Path, spans: Sequence[Span]) -> dict[str, dict[str, Any]]:
    """Kind of phase -> quantiles of its steps, and its p99 over that of the quiet phases.

    interval_ms: from the end of one step to that of the next, both within one phase, under load
    that never pauses; none where the line of either is not whole. device_ms: what the step itself
    took. seconds: of all phases of the kind. p99_to_quiet_95: how far that of intervals is told.
    """
    ids, ends, device_ms = _read(log)
    begins = np.roll(ends, 1)
    is_known = ids == np.roll(ids, 1) + 1
    steps = np.stack([(ends - begins) * 1e3, device_ms])
    chosen: dict[str, list[np.ndarray[Any, Any]]] = {}
    for span in spans:
        is_inside = is_known & (begins >= span.start_s) & (ends < span.end_s)
        chosen.setdefault(span.kind, []).append(steps[:, is_inside])
    quiet = chosen.get(_QUIET, [])
    return {
        kind: {"seconds": round(_seconds(spans, kind), 1), **_quantiles(phases, quiet)}
        for kind, phases in chosen.items()
        if sum(phase.shape[1] for phase in phases)
    }


def _seconds(spans: Sequence[Span], kind: str) -> float:
    return sum(span.end_s - span.start_s for span in spans if span.kind == kind)


def _quantiles(phases: Phases, quiet: Phases) -> dict[str, Any]:
    figures: dict[str, Any] = {"num_steps": sum(phase.shape[1] for phase in phases)}
    for row, name in enumerate(_NAMES):
        values = np.concatenate([phase[row] for phase in phases])
        p50, p99, worst = np.percentile(values, [50, 99, 100])
        figures[f"{name}_ms"] = {"p50": round(p50, 4), "p99": round(p99, 4), "max": round(worst, 4)}
    if sum(phase.shape[1] for phase in quiet):
        ratios = {name: _p99(phases, row) / _p99(quiet, row) for row, name in enumerate(_NAMES)}
        figures["p99_to_quiet"] = {name: round(ratio, 4) for name, ratio in ratios.items()}
        figures["p99_to_quiet_95"] = _interval_bounds(phases, quiet)
    return figures


def _interval_bounds(phases: Phases, quiet: Phases) -> list[float]:
    """95 % of the ratios of intervals that come out where phases are drawn anew."""
    rng = np.random.default_rng(0)

    def drawn(parts: Phases) -> float:
        return _p99([parts[index] for index in rng.integers(len(parts), size=len(parts))], row=0)

    ratios = [drawn(phases) / drawn(quiet) for _ in range(_NUM_RESAMPLES)]
    return [round(float(bound), 4) for bound in np.nanpercentile(ratios, [2.5, 97.5])]


def _p99(phases: Phases, row: int) -> float:
    values = np.concatenate([phase[row] for phase in phases])
    return float(np.percentile(values, 99)) if values.size else float("nan")


def _read(log: Path) -> tuple[np.ndarray[Any, Any], ...]:
    """Of each step: its number, when it ended, what it took."""
    lines = list(_step_lines(log))
    ids = [line["step_id"] for line in lines]
    ends = [dt.datetime.fromisoformat(line["timestamp"]).timestamp() for line in lines]
    return np.array(ids), np.array(ends), np.array([float(line["ms"]) for line in lines])


def _step_lines(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of steps. Engine and front end write to one file, so some lines run together."""
    with log.open(encoding="utf-8") as file:
        for line in file:
            if _STEP in line and line.endswith("\n"):
                with contextlib.suppress(json.JSONDecodeError):
                    yield json.loads(line)
