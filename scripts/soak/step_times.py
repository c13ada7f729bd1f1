"""What steps took in each phase of a soak, from the executor's log at level debug."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

__all__ = ["Span", "recorded", "step_times"]

_STEP: Final = '"event": "step"'
_QUIET: Final = "quiet"


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
    took. seconds: of all phases of the kind.
    """
    ids, ends, device_ms = _read(log)
    begins = np.roll(ends, 1)
    is_known = ids == np.roll(ids, 1) + 1
    steps = np.stack([(ends - begins) * 1e3, device_ms])
    chosen: dict[str, list[np.ndarray[Any, Any]]] = {}
    for span in spans:
        is_inside = is_known & (begins >= span.start_s) & (ends < span.end_s)
        chosen.setdefault(span.kind, []).append(steps[:, is_inside])
    found = {kind: np.concatenate(parts, axis=1) for kind, parts in chosen.items()}
    quiet = found.get(_QUIET)
    return {
        kind: {"seconds": round(_seconds(spans, kind), 1), **_quantiles(pair, quiet)}
        for kind, pair in found.items()
        if pair.shape[1]
    }


def _seconds(spans: Sequence[Span], kind: str) -> float:
    return sum(span.end_s - span.start_s for span in spans if span.kind == kind)


def _quantiles(pair: np.ndarray[Any, Any], quiet: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    intervals, device = pair
    figures: dict[str, Any] = {"num_steps": len(intervals)}
    for name, values in (("interval_ms", intervals), ("device_ms", device)):
        p50, p99, worst = np.percentile(values, [50, 99, 100])
        figures[name] = {"p50": round(p50, 4), "p99": round(p99, 4), "max": round(worst, 4)}
    if quiet is not None and quiet.shape[1]:
        ratios: Mapping[str, float] = {
            name: float(np.percentile(ours, 99) / np.percentile(theirs, 99))
            for name, ours, theirs in zip(("interval", "device"), pair, quiet, strict=True)
        }
        figures["p99_to_quiet"] = {name: round(ratio, 4) for name, ratio in ratios.items()}
    return figures


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
