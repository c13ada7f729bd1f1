"""The scheduler must not lose while it learns: the first steps at each batch size, simulated."""

from __future__ import annotations

import itertools

import pytest

from tests.bench.simulator.bars import Spread
from tests.bench.simulator.cold_start import NUM_STEPS, PHASES, against_best_fixed
from tests.bench.simulator.machine import cpu_machine, load_machine
from tests.bench.simulator.recordings import load_recordings

H200 = ("block", "lookup")


@pytest.mark.parametrize("kind", ["sampled", "greedy"])
def test_little_is_lost_in_the_first_steps_where_drafts_are_dear(kind):
    """50 steps each of 1, 16, 4 and 256 requests, against the best fixed length of each."""
    found = against_best_fixed(load_recordings(kind), cpu_machine(), num_seeds=3).mean(axis=0)
    assert (found > 0.95).all(), dict(zip(PHASES, found, strict=True))


def test_a_free_drafter_is_used_from_the_first_step():
    found = against_best_fixed(load_recordings("sampled"), load_machine("8b", "lookup"))
    assert (found.mean(axis=0) > 0.98).all(), dict(zip(PHASES, found.mean(axis=0), strict=True))


@pytest.mark.bench
def test_bench_cold_start(record_bench):
    """Each machine and kind of drafts, phase by phase."""
    machines = {"cpu": cpu_machine()} | {name: load_machine("8b", name) for name in H200}
    results = []
    for (name, machine), kind in itertools.product(machines.items(), ("sampled", "greedy")):
        found = against_best_fixed(load_recordings(kind), machine, num_seeds=4)
        for num_requests, phase in zip(PHASES, found.T, strict=True):
            ratio = Spread.of(phase)
            results.append(
                {
                    "machine": name,
                    "recordings": kind,
                    "concurrency": num_requests,
                    "ratio": ratio.mean,
                    "standard_error": ratio.error,
                }
            )
            print(results[-1], flush=True)
    record_bench("simulator_cold_start", results, num_steps=NUM_STEPS, num_seeds=4)
