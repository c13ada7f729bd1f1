"""The simulator keeps the executor's rules: its figures would mean nothing otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from specsched_kernels import allocate_verify_lens

from tests.bench.simulator.machine import load_machine
from tests.bench.simulator.ranking import rank_drafts
from tests.bench.simulator.recordings import load_recordings
from tests.bench.simulator.simulation import Result, simulate
from tests.bench.simulator.workload import Workload


def run(policy: str, seed: int = 1, concurrency: int = 3) -> Result:
    workload = Workload(load_recordings("sampled"), concurrency)
    machine = load_machine("8b", "lookup")
    return simulate(policy, workload, machine, num_requests=8, seed=seed)


def test_ranks_like_the_executor():
    rng = np.random.default_rng(0)
    for _ in range(50):
        confidence = rng.choice([0.25, 0.5, 0.75, 1.0], size=(6, 7)).astype(np.float32)
        present = rng.integers(0, 8, size=6)
        budget = int(rng.integers(0, 45))
        ranked = rank_drafts(confidence, present, np.ones(6), budget, 0xFFFF_FFFF)
        allocation = allocate_verify_lens(
            torch.from_numpy(confidence),
            torch.from_numpy(present.astype(np.int32)),
            torch.ones(6),
            budget,
            prior=torch.full((7,), 0.5),
            start_positions=torch.zeros(6, dtype=torch.int64),
            padded_rows=64,
        )
        assert ranked.tolist() == allocation.verify_lens.tolist()


def test_same_seed_same_run_other_seed_another():
    assert run("throughput").tokens_per_second == run("throughput").tokens_per_second
    assert run("throughput").tokens_per_second != run("throughput", seed=2).tokens_per_second


def test_off_verifies_nothing_and_gains_nothing():
    result = run("off")
    assert sum(result.budgets) == 0
    assert result.accepted == 0


def test_where_nothing_was_drafted_nothing_is_verified():
    """Prompt lookup is silent in most steps; what is accepted there is the recorded outcome."""
    recordings = load_recordings("copy")
    silent = recordings.num_drafted == 0
    assert silent.mean() > 0.5
    assert not recordings.accepted[silent].any()
    workload, machine = Workload(recordings, 8), load_machine("8b", "lookup")
    result = simulate("fixed(7)", workload, machine, num_requests=8, seed=1)
    assert 0 < np.mean(result.budgets) < 0.7 * 7 * 8
    assert result.accepted > 0


def test_budget_follows_the_policy():
    assert max(run("fixed(1)").budgets) <= 3
    assert max(run("fixed(7)").budgets) > 3


def test_drafts_hold_as_often_however_many_are_verified():
    """Replayed by position they would hold an eighth less often where one each is verified."""
    recordings, machine = load_recordings("sampled"), load_machine("8b", "lookup")
    shares = []
    for num_verified in (1, 7):
        workload, policy = Workload(recordings, 16), f"fixed({num_verified})"
        result = simulate(policy, workload, machine, num_requests=240, seed=1)
        recorded = np.minimum(recordings.accepted, num_verified).mean() / num_verified
        shares.append(result.accepted / sum(result.budgets) / recorded)
    assert shares[0] == pytest.approx(shares[1], rel=0.03)
