"""Steps on a CPU by how its threads wait for each other, alone and beside other busy programs.

Every case is a process of its own, as OpenMP reads the setting when it is loaded; cases come in
turns. `heeding` is what an executor does: it waits long, and shortly while others want its cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.bench.conftest import RecordBench
from tests.bench.recording import REPOSITORY, percentiles

ROWS = (1, 4, 16)
NUM_STEPS = 30
NUM_ROUNDS = 1
SPINS = {
    "200 turns": "200",
    "1000 turns": "1000",
    "5000 turns": "5000",
    "30000 turns": "30000",
    "heeding": None,
}
NUM_OTHERS = (0, 1, 2)
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GLIBC_TUNABLES")


def steps_ms(spins: str | None) -> dict[int, list[float]]:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    if spins is not None:
        environment["GOMP_SPINCOUNT"] = spins
    arguments = ["-m", "tests.bench.waiting_threads", str(NUM_STEPS), *map(str, ROWS)]
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    return {int(rows): samples for rows, samples in json.loads(done.stdout).items()}


@contextlib.contextmanager
def busy_programs(count: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_steps_by_how_threads_wait(record_bench: RecordBench) -> None:
    samples: dict[tuple[int, str, int], list[float]] = defaultdict(list)
    for _ in range(NUM_ROUNDS):
        for num_others in NUM_OTHERS:
            with busy_programs(num_others):
                for waiting, spins in SPINS.items():
                    for rows, each in steps_ms(spins).items():
                        samples[num_others, waiting, rows] += each
    results = [
        {"others": others, "waiting": waiting, "rows": rows, "step_ms": percentiles(each)}
        for (others, waiting, rows), each in samples.items()
    ]
    for others in NUM_OTHERS:
        for waiting in SPINS:
            medians = (statistics.median(samples[others, waiting, rows]) for rows in ROWS)
            print(f"{others} others, {waiting}:", *(f"{median:.0f}" for median in medians), "ms")
    record_bench("waiting_threads", results, num_steps=NUM_STEPS, num_rounds=NUM_ROUNDS)
