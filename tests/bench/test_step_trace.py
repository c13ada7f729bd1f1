"""What the pipelined loop leaves of the GPU's time, and what scheduling costs it.

The engine runs captured steps of a real model's shape (or of a real model, `--bench-model`), a
scheduler in a process of its own plans them over shared memory.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from specsched_executor.core import PAD_SLOT
from specsched_executor.device.device_step import DeviceStep
from specsched_executor.device.graphs import CudaReplayer, StepGraphs
from specsched_executor.device.timeline import CudaTimeline
from specsched_executor.transport.none import NoTransport
from specsched_executor.transport.shared_memory import SharedMemoryTransport

from tests.bench.conftest import RecordBench
from tests.bench.driven_gpu import MAX_DRAFT_TOKENS, DrivenGpu, driven_gpu
from tests.bench.recording import percentiles
from tests.bench.step_trace import StepTrace, draw_timeline

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning"),
    pytest.mark.bench,
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CONCURRENCY = (1, 64, 256)
NUM_STEPS = 100
NUM_WARM_UP_STEPS = 30
NUM_TRACED_STEPS = 20
NUM_BLOCKS = 12
TOKENS_PER_PROMPT = 160
PROMPTS_PER_BLOCK = 3


@pytest.fixture(scope="module")
def gpu(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DrivenGpu]:
    model = request.config.getoption("--bench-model")
    with driven_gpu(tmp_path_factory.mktemp("gpu"), model=model) as driven:
        yield driven


@pytest.fixture
def settings(request: pytest.FixtureRequest, gpu: DrivenGpu) -> dict[str, Any]:
    model = request.config.getoption("--bench-model")
    return {
        "model": Path(model).name if model else "random weights, recorded outcomes",
        "dtype": gpu.executor.loaded.dtype,
        "drafter": gpu.loop._runner._step.drafter.name,
        "max_draft_tokens": MAX_DRAFT_TOKENS,
    }


# ===================== The GPU between two steps =====================


class Boundaries:
    """CUDA events where steps begin and end on the device. waited_s: what the host waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begins: list[torch.cuda.Event] = []
        self.ends: list[torch.cuda.Event] = []
        self.waited_s = 0.0
        monkeypatch.setattr(CudaTimeline, "wait", self._waiting(CudaTimeline.wait))
        for method, marks in (("mark_start", self.begins), ("mark_end", self.ends)):
            before = getattr(CudaTimeline, method)
            monkeypatch.setattr(CudaTimeline, method, _marking(before, marks))

    def _waiting(self, before: Callable[..., None]) -> Callable[..., None]:
        def wait(timeline: CudaTimeline) -> None:
            started = time.perf_counter()
            before(timeline)
            self.waited_s += time.perf_counter() - started

        return wait

    def idle_share(self) -> float:
        """From the outputs of a step on the host to the next one's inputs on the device."""
        torch.cuda.synchronize()
        pairs = zip(self.ends[:-1], self.begins[1:], strict=True)
        idle_ms = sum(end.elapsed_time(begin) for end, begin in pairs)
        return idle_ms / self.begins[0].elapsed_time(self.ends[-1])

    def step_ms(self) -> list[float]:
        """From begin to begin."""
        return [a.elapsed_time(b) for a, b in itertools.pairwise(self.begins)]

    def busy_ms(self) -> list[float]:
        """From begin to end."""
        pairs = zip(self.begins, self.ends, strict=True)
        return [begin.elapsed_time(end) for begin, end in pairs]


def _marking(before: Callable[..., None], marks: list[torch.cuda.Event]) -> Callable[..., None]:
    """Made beforehand and recorded on a stream that is given: what is measured is to stay as is."""
    stream = torch.cuda.current_stream()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * NUM_STEPS)]  # type: ignore[no-untyped-call]
    unused = iter(events)
    for event in events:
        event.record(stream)

    @functools.wraps(before)
    def mark(timeline: CudaTimeline) -> None:
        before(timeline)
        marks.append(next(unused))
        marks[-1].record(stream)

    return mark


def unprofiled(gpu: DrivenGpu, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    host_ms = []
    with monkeypatch.context() as patched:
        boundaries = Boundaries(patched)
        for _ in range(NUM_STEPS):
            started, waited_s = time.perf_counter(), boundaries.waited_s
            gpu.step()
            took_s = time.perf_counter() - started
            host_ms.append((took_s - (boundaries.waited_s - waited_s)) * 1e3)
        idle_share = boundaries.idle_share()
    return {
        "idle_share": idle_share,
        "step_ms": percentiles(boundaries.step_ms()),
        "gpu_ms": percentiles(boundaries.busy_ms()),
        "host_ms": percentiles(host_ms),
    }


def profiled(gpu: DrivenGpu, monkeypatch: pytest.MonkeyPatch, folder: Path) -> StepTrace:
    from torch.profiler import ProfilerActivity, profile, record_function

    def annotated(before: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with record_function(phase):
                return before(*args, **kwargs)

        return run

    loop, runner = gpu.loop, gpu.loop._runner
    with monkeypatch.context() as patched:
        patched.setattr(loop, "_form", annotated(loop._form, "form"))
        patched.setattr(runner, "launch", annotated(runner.launch, "launch"))
        patched.setattr(runner, "collect", annotated(runner.collect, "wait"))
        patched.setattr(loop, "_finish", annotated(loop._finish, "process"))
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True
        ) as profiler:
            for _ in range(NUM_TRACED_STEPS):
                gpu.step()
            torch.cuda.synchronize()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    return StepTrace(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def test_the_gpu_does_not_wait_for_the_host(
    gpu: DrivenGpu,
    settings: dict[str, Any],
    record_bench: RecordBench,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """No call waits between forming and launching; how long the device idles between steps."""
    results, windows = [], {}
    for concurrency in CONCURRENCY:
        gpu.submit(concurrency, max_tokens=900)
        for _ in range(NUM_WARM_UP_STEPS):
            gpu.step()
        before = gpu.engine.stats()
        told = unprofiled(gpu, monkeypatch)
        after = gpu.engine.stats()
        trace = profiled(gpu, monkeypatch, tmp_path)
        waits = trace.waits_before_launch()
        windows[f"{concurrency} requests"] = trace.window(4)
        results.append(
            {
                "concurrency": concurrency,
                **told,
                "planned_share": (after.num_planned_steps - before.num_planned_steps) / NUM_STEPS,
                "tokens_per_step": (after.num_output_tokens - before.num_output_tokens) / NUM_STEPS,
                "profiled_idle_share": trace.idle_between_steps(),
                "profiled_phase_us": trace.phase_us(),
                "waits_before_launch": waits,
            }
        )
        print(json.dumps(results[-1]))
        for request_id in list(gpu.engine._by_id):
            gpu.engine.abort(request_id)
        gpu.engine._take_orders()
        gpu.finish()
    assert gpu.engine.stats().num_failed_steps == 0
    path = record_bench("step_trace", results, num_steps=NUM_STEPS, windows=windows, **settings)
    if importlib.util.find_spec("matplotlib") is not None:
        draw_timeline(windows, path.with_suffix(".png"))
    assert [result["waits_before_launch"] for result in results] == [[]] * len(results)


# ===================== Scheduling at one request =====================

ARMS = ("scheduled", "asked", "fixed")
"""With the scheduler; the same, but none of its plans is followed; and without any. The last two
verify full drafts every step: asked / fixed is what plans cost, scheduled / asked what they bring.
"""


class OneRequest:
    """Prompts that are answered one after the other, under one arm."""

    def __init__(self, gpu: DrivenGpu) -> None:
        self._gpu = gpu
        self._gate, self._attached = gpu.loop._gate, gpu.executor.transport
        assert isinstance(self._attached, SharedMemoryTransport)
        (attachment,) = gpu.executor.attacher.attachments()  # type: ignore[union-attr]
        self._lane = attachment.lane

    def run(self, arm: str, first: int) -> dict[str, float]:
        """Seconds, steps and tokens that some prompts took."""
        self._gate._transport = NoTransport() if arm == "fixed" else self._attached
        self._attached.activate(None if arm == "asked" else self._lane)  # type: ignore[union-attr]
        before, started = self._gpu.engine.stats(), time.perf_counter()
        for index in range(first, first + PROMPTS_PER_BLOCK):
            self._gpu.submit(1, TOKENS_PER_PROMPT, first=index)
            self._gpu.finish()
        seconds, after = time.perf_counter() - started, self._gpu.engine.stats()
        counted = {name: getattr(after, name) - getattr(before, name) for name in COUNTED}
        return {"seconds": seconds, **counted}


COUNTED = ("num_steps", "num_planned_steps", "num_drafted_tokens", "num_scheduled_tokens")
COUNTED += ("num_verified_tokens", "num_accepted_tokens", "num_output_tokens")


def compared(blocks: dict[str, list[dict[str, float]]], arm: str, other: str) -> dict[str, float]:
    """Ratio of the tokens per second of two arms, paired by block."""
    ratios = [
        (a["num_output_tokens"] / a["seconds"]) / (b["num_output_tokens"] / b["seconds"])
        for a, b in zip(blocks[arm], blocks[other], strict=True)
    ]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return {
        "median": statistics.median(ratios),
        "mean": statistics.fmean(ratios),
        "standard_error": error,
    }


def per_step(blocks: list[dict[str, float]]) -> dict[str, float]:
    """Means over all blocks of an arm."""
    total = {name: sum(block[name] for block in blocks) for name in ("seconds", *COUNTED)}
    means = {name: round(total[name] / total["num_steps"], 4) for name in COUNTED[1:]}
    return {"ms": round(1e3 * total["seconds"] / total["num_steps"], 4), **means}


def test_scheduling_at_one_request(
    gpu: DrivenGpu, settings: dict[str, Any], record_bench: RecordBench
) -> None:
    """The same prompts under each arm in turn."""
    one = OneRequest(gpu)
    blocks: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for arm in ARMS * 2:
        one.run(arm, 0)
    for block in range(NUM_BLOCKS):
        for arm in ARMS if block % 2 else reversed(ARMS):
            blocks[arm].append(one.run(arm, block * PROMPTS_PER_BLOCK))
    one.run("scheduled", 0)
    result = {
        "concurrency": 1,
        "per_step": {arm: per_step(found) for arm, found in blocks.items()},
        "scheduled_to_fixed": compared(blocks, "scheduled", "fixed"),
        "scheduled_to_asked": compared(blocks, "scheduled", "asked"),
        "asked_to_fixed": compared(blocks, "asked", "fixed"),
    }
    print(json.dumps(result))
    assert gpu.engine.stats().num_failed_steps == 0
    record_bench("scheduling_at_one_request", [result], num_blocks=NUM_BLOCKS, **settings)


# ===================== Capturing =====================


def test_capture_with_and_without_allocation(
    gpu: DrivenGpu,
    settings: dict[str, Any],
    record_bench: RecordBench,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same grid once with verify lengths that the device chooses, once with fixed ones."""
    step, sizes = gpu.loop._runner._step, gpu.loop._runner._graphs._sizes
    allocate = DeviceStep._allocate

    @functools.cache
    def fixed(shape: Any) -> Any:
        requests = step.inputs.requests(shape.padded_requests)
        zeros = torch.zeros(shape.padded_requests, dtype=torch.int64, device=step.device)
        return allocate(step, shape, requests, zeros, zeros.int())

    def fixed_lengths(_: DeviceStep, shape: Any, *__: Any) -> Any:
        return fixed(shape)

    # Capturing runs the step that the inputs describe: one of nobody.
    step.inputs.arrays.memory.zero_()
    step.inputs.arrays["slot_ids"].fill_(PAD_SLOT)
    reports: dict[str, list[Any]] = {"scheduled": [], "fixed": []}
    for name in ("scheduled", "fixed", "fixed", "scheduled"):
        with monkeypatch.context() as patched:
            if name == "fixed":
                for shape in StepGraphs(step, sizes, CudaReplayer(step.device))._verify_shapes():
                    fixed(shape)
                patched.setattr(DeviceStep, "_allocate", fixed_lengths)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            reports[name].append(StepGraphs(step, sizes, CudaReplayer(step.device)).capture_all())
            torch.cuda.empty_cache()
    results = [
        {
            "lengths": name,
            "num_graphs": found[0].num_graphs,
            "seconds": [round(report.seconds, 3) for report in found],
            "mib": [report.num_bytes >> 20 for report in found],
        }
        for name, found in reports.items()
    ]
    print(json.dumps(results))
    record_bench("graph_capture", results, **settings)
