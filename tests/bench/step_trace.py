"""Reads a profiler's trace of engine steps: what the host waited for, when the device was idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Span", "StepTrace", "draw_timeline"]

PHASES = ("form", "launch", "wait", "process")
WAITS = ("Synchronize", "StreamWaitEvent", "cudaMemcpy", "cudaMemset")
"""Runtime calls that wait, by a part of their names; asynchronous copies and sets do not."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from begin to end, in microseconds of the trace."""

    name: str
    begin: float
    end: float


class StepTrace:
    """The spans of a Chrome trace, sorted. host: by phase; device: kernels and copies."""

    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        def of(*categories: str) -> list[Span]:
            spans = [
                Span(event["name"], event["ts"], event["ts"] + event["dur"])
                for event in events
                if event.get("cat") in categories and "dur" in event
            ]
            return sorted(spans, key=lambda span: span.begin)

        self.host = [span for span in of("user_annotation") if span.name in PHASES]
        self.calls = of("cuda_runtime", "cuda_driver")
        self.kernels = of("kernel")
        self.device = sorted([*self.kernels, *of("gpu_memcpy", "gpu_memset")], key=_begin)

    def waits_before_launch(self) -> list[str]:
        """Names of the calls that wait between the begin of a form and the end of its launch."""
        windows = zip(self._phase("form"), self._phase("launch"), strict=True)
        found = []
        for form, launch in windows:
            found += [
                call.name
                for call in self.calls
                if form.begin <= call.begin <= launch.end and _waits(call.name)
            ]
        return found

    def steps(self) -> list[list[Span]]:
        """Device spans of each whole step: from its copy of inputs to its copy of outputs."""
        steps: list[list[Span]] = [[]]
        for span in self.device:
            steps[-1].append(span)
            if "DtoH" in span.name:
                steps.append([])
        return steps[1:-1]  # the first may have begun, the last not ended

    def idle_between_steps(self) -> float:
        """Share of the time in which no kernel ran from a step's last one to the next one's first.

        Copies count as idle.
        """
        steps = [[span for span in step if "Mem" not in span.name] for step in self.steps()]
        steps = [step for step in steps if step]
        ends = [max(span.end for span in step) for step in steps]
        begins = [step[0].begin for step in steps]
        gaps = [max(0.0, begin - end) for end, begin in zip(ends[:-1], begins[1:], strict=True)]
        return sum(gaps) / (ends[-1] - begins[0])

    def phase_us(self) -> dict[str, float]:
        """Mean time of each phase of the host."""
        spans = {name: self._phase(name) for name in PHASES}
        return {
            name: sum(span.end - span.begin for span in found) / max(len(found), 1)
            for name, found in spans.items()
        }

    def window(self, num_steps: int) -> dict[str, list[tuple[str, float, float]]]:
        """What happened in some steps in the middle; kernels without a gap are one span."""
        steps = self.steps()
        first = max(0, len(steps) // 2 - num_steps // 2)
        chosen = steps[first : first + num_steps]
        begin, end = chosen[0][0].begin - 300, chosen[-1][-1].end + 100

        def inside(spans: Sequence[Span]) -> list[tuple[str, float, float]]:
            return [
                (span.name, round(span.begin - begin, 1), round(span.end - begin, 1))
                for span in spans
                if begin <= span.begin and span.end <= end
            ]

        return {"host": inside(self.host), "device": inside(_merged(self.device))}

    def _phase(self, name: str) -> list[Span]:
        return [span for span in self.host if span.name == name]


def _begin(span: Span) -> float:
    return span.begin


def _waits(name: str) -> bool:
    return any(part in name for part in WAITS) and "Async" not in name


def _merged(spans: Sequence[Span], max_gap_us: float = 3.0) -> list[Span]:
    """Kernels that follow each other at once become one span; copies stay by themselves."""
    merged: list[Span] = []
    for span in spans:
        kind = span.name.partition(" (")[0] if "Mem" in span.name else "kernels"
        last = merged[-1] if merged else None
        if (
            last is not None
            and kind == last.name == "kernels"
            and (span.begin - last.end < max_gap_us)
        ):
            merged[-1] = Span(kind, last.begin, max(last.end, span.end))
        else:
            merged.append(Span(kind, span.begin, span.end))
    return merged


def draw_timeline(
    windows: Mapping[str, Mapping[str, Sequence[tuple[str, float, float]]]], path: Path
) -> None:
    """A picture of the windows by title, each with its host and its device."""
    from matplotlib import pyplot as plt

    colours = {
        "form": "tab:blue",
        "launch": "tab:green",
        "wait": "lightgrey",
        "process": "tab:orange",
        "kernels": "tab:red",
    }
    figure, plots = plt.subplots(len(windows), 1, figsize=(12, 2.2 * len(windows)), squeeze=False)
    for (title, window), plot in zip(windows.items(), plots[:, 0], strict=True):
        for row, kind in enumerate(("device", "host")):
            for name, begin, end in window[kind]:
                colour = colours.get(name, "black")
                plot.broken_barh(
                    [(begin / 1e3, (end - begin) / 1e3)], (row - 0.4, 0.8), color=colour
                )
        plot.set_yticks([0, 1], ["GPU", "host"])
        plot.set_title(title)
        plot.set_xlabel("ms")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    figure.legend(handles, colours, loc="upper right", ncols=len(colours))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
