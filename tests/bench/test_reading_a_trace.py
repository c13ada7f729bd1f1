"""What is read from a profiler's trace, of a trace that is made up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.step_trace import StepTrace

COPY_IN, COPY_OUT = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"


def span(category: str, name: str, begin: float, duration: float) -> dict[str, Any]:
    return {"cat": category, "name": name, "ts": begin, "dur": duration}


def made_up_trace(*calls: tuple[str, float]) -> StepTrace:
    """Ten steps of 100 us: copies of 5, kernels of 80 in two pieces, nothing for 10 us between."""
    events = [{"ph": "M", "name": "a name"}]
    for step in range(10):
        at = 100.0 * step
        events += [
            span("user_annotation", "form", at, 20),
            span("user_annotation", "launch", at + 25, 10),
            span("user_annotation", "wait", at + 40, 30),
            span("gpu_memcpy", COPY_IN, at + 50, 5),
            span("kernel", "first", at + 55, 30),
            span("gpu_memcpy", "Memcpy DtoD (Device -> Device)", at + 85, 5),
            span("kernel", "second", at + 90, 45),
            span("gpu_memcpy", COPY_OUT, at + 135, 5),
        ]
    events += [span("cuda_runtime", name, begin, 1) for name, begin in calls]
    return StepTrace(events)


def test_idle_time_is_what_lies_between_the_kernels_of_two_steps():
    # Copies are no kernels: 20 of 100 us; nine steps are taken, with eight gaps between.
    assert made_up_trace().idle_between_steps() == pytest.approx(8 * 20 / (8 * 100 + 80))


@pytest.mark.parametrize(
    ("name", "begin", "is_found"),
    [
        ("cudaEventSynchronize", 110, True),
        ("cudaStreamWaitEvent", 122, True),
        ("cudaMemcpy", 130, True),
        ("cudaMemcpyAsync", 130, False),
        ("cudaEventQuery", 130, False),
        ("cudaEventSynchronize", 150, False),
    ],
)
def test_what_waits_between_forming_and_launching_is_found(name, begin, is_found):
    trace = made_up_trace((name, begin))
    assert trace.waits_before_launch() == ([name] if is_found else [])


def test_a_window_shows_pieces_of_work_and_the_phases_of_the_host():
    window = made_up_trace().window(2)
    names = [name for name, _, _ in window["device"]]
    step = ["Memcpy HtoD", "kernels", "Memcpy DtoD", "kernels", "Memcpy DtoH"]
    first = names.index("Memcpy HtoD")
    assert names[first : first + 10] == step * 2
    assert {name for name, _, _ in window["host"]} == {"form", "launch", "wait"}
    assert made_up_trace().phase_us() == {"form": 20, "launch": 10, "wait": 30, "process": 0}
