"""A program that takes steps of the model as an executor on a CPU does, and prints their times.

`python -m tests.bench.waiting_threads STEPS ROWS...`. `GOMP_SPINCOUNT` says how long threads wait
for each other actively; without it they heed other programs.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from specsched_executor._openmp import wait_long
from specsched_executor.allocator import start_anew_with_settings
from specsched_protocol.logs import logs_on_stderr

SETTLING_S = 2.0
"""For the threads to learn who else is there, and for what a first step compiles."""


def main(num_steps: int, row_counts: list[int]) -> None:
    start_anew_with_settings()
    wait_long()
    from specsched_executor.model import load_model
    from specsched_executor.serve.crowding import heeding_other_programs

    from tests.bench.test_bench_model import (
        CONTEXT_TOKENS,
        VARIANTS,
        filled_cache,
        make_batch,
        runner,
    )

    model = load_model(options=VARIANTS["bfloat16 packed"]).model
    cache = filled_cache(model, max(row_counts) * CONTEXT_TOKENS)
    steps = {rows: runner(model, make_batch(rows, 1, CONTEXT_TOKENS), cache) for rows in row_counts}
    samples: dict[int, list[float]] = {rows: [] for rows in row_counts}
    with heeding_other_programs(threading.get_native_id()):
        settled = time.monotonic() + SETTLING_S
        while time.monotonic() < settled:
            for step in steps.values():
                step()
        for rows, step in steps.items():
            for _ in range(num_steps):
                started = time.perf_counter()
                step()
                samples[rows].append((time.perf_counter() - started) * 1e3)
    print(json.dumps(samples))


if __name__ == "__main__":
    with logs_on_stderr():
        main(int(sys.argv[1]), [int(rows) for rows in sys.argv[2:]])
