"""Times of device work by CUDA-graph replay, so that launch overhead of the host stays out."""

from __future__ import annotations

from collections.abc import Callable

import torch


def replay_us(work: Callable[[], object], *, repeats: int, num_replays: int = 40) -> list[float]:
    """Microseconds per call of `work`: a graph of `repeats` calls in a row, `num_replays` times."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # which makes what `work` reads
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            work()
    samples = []
    for index in range(num_replays + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if index >= 3:
            samples.append(start.elapsed_time(end) * 1000.0 / repeats)
    return samples
