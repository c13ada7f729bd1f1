"""The scheduler must not lose while it learns: the first steps at each batch size, simulated."""

from __future__ import annotations

import pytest

from tests.bench.simulator.cold_start import PHASES, against_best_fixed
from tests.bench.simulator.machine import cpu_machine, load_machine
from tests.bench.simulator.recordings import load_recordings


@pytest.mark.parametrize("kind", ["sampled", "greedy"])
def test_little_is_lost_in_the_first_steps_where_drafts_are_dear(kind):
    """50 steps each of 1, 16, 4 and 256 requests, against the best fixed length of each."""
    found = against_best_fixed(load_recordings(kind), cpu_machine(), num_seeds=3).mean(axis=0)
    assert (found > 0.95).all(), dict(zip(PHASES, found, strict=True))


def test_a_free_drafter_is_used_from_the_first_step():
    found = against_best_fixed(load_recordings("sampled"), load_machine("8b", "lookup"))
    assert (found.mean(axis=0) > 0.98).all(), dict(zip(PHASES, found.mean(axis=0), strict=True))
