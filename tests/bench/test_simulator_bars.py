"""Throughput and fairness in the simulator: short runs can fail, long ones are recorded.

An instrument for choosing, not evidence about the product; see tests.bench.simulator.
"""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.bench.simulator.bars import (
    STATEMENT,
    Regime,
    Spread,
    best_fixed,
    paces,
    runs,
    speeds,
)
from tests.bench.simulator.learning import LearningScheduler

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
THROUGHPUT = "throughput"
LONG = 400
REGIMES = {
    "block": Regime("block", "sampled"),
    "lookup": Regime("lookup", "sampled"),
    "mixed": Regime("block", "mixed"),
    "copy": Regime("lookup", "copy"),
    "greedy_copy": Regime("lookup", "greedy copy"),
    "synthetic_block": Regime("block", "synthetic", LONG),
    "synthetic_alike": Regime("lookup", "synthetic alike", LONG),
    "synthetic": Regime("lookup", "synthetic", LONG),
    "synthetic_unlike": Regime("lookup", "synthetic unlike", LONG),
}
FAIR = [f"throughput(fairness={alpha})" for alpha in (1, 2, 4)]


# ===================== Short runs, for the suite =====================


@pytest.mark.slow
def test_short_drafts_are_found_where_long_ones_do_not_pay():
    """256 requests: the likeliest first drafts are worth their rows, but no fixed length is."""
    regime, once = REGIMES["block"], {"rounds": 8, "num_seeds": 1}
    learned, off = (
        speeds(runs(policy, regime.workload(256), regime.machine, **once))
        for policy in (THROUGHPUT, "off")
    )
    assert (learned > 1.015 * off).all()


@pytest.mark.slow
def test_fairness_keeps_the_tail_where_there_is_something_to_win():
    """Time per token at alpha 1: p95 within 3 % of the best fixed length's, median 5 % better."""
    regime, once = REGIMES["synthetic"], {"rounds": 4, "num_seeds": 2}
    machine, workload = regime.machine, regime.workload(64)
    _, fixed = best_fixed(workload, machine, **once)
    free, fair = (runs(each, workload, machine, **once) for each in (THROUGHPUT, FAIR[0]))
    tail, fair_tail = (paces(each, 0.95) / paces(fixed, 0.95) for each in (free, fair))
    assert fair_tail.mean() <= 1.03
    assert (paces(fair, 0.5) / paces(fixed, 0.5)).mean() <= 0.95
    assert (fair_tail < tail).all()
    assert (speeds(fair) > speeds(fixed)).all()


# ===================== Long runs, on record =====================


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("regime", REGIMES)
def test_bench_throughput_against_the_best_fixed_length(record_bench, regime):
    settings = {"rounds": 8, "num_seeds": 8}
    of, results = REGIMES[regime], []
    machine = of.machine
    for concurrency in CONCURRENCIES:
        workload = of.workload(concurrency)
        name, fixed = best_fixed(workload, machine, **settings)
        learned = {"scheduler_type": LearningScheduler} | settings
        ratio = Spread.of(speeds(runs(THROUGHPUT, workload, machine, **learned)) / speeds(fixed))
        results.append(
            {
                "concurrency": concurrency,
                "best_fixed": name,
                "ratio": ratio.mean,
                "standard_error": ratio.error,
            }
        )
        print(concurrency, name, ratio, flush=True)
    record_bench(
        f"simulator_throughput_{regime}",
        results,
        decoder="8b",
        **asdict(of),
        statement=STATEMENT,
        **settings,
    )


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("regime", REGIMES)
def test_bench_fairness(record_bench, regime):
    """Time per token and throughput by alpha, against the best fixed length."""
    settings = {"rounds": 8, "num_seeds": 4}
    of, results = REGIMES[regime], []
    machine = of.machine
    for concurrency in (32, 64, 128) if "synthetic" in regime else (16, 64, 256):
        workload = of.workload(concurrency)
        name, fixed = best_fixed(workload, machine, **settings)
        for policy in (THROUGHPUT, *FAIR):
            found = runs(policy, workload, machine, **settings)
            speed = Spread.of(speeds(found) / speeds(fixed))
            result = {"concurrency": concurrency, "policy": policy, "best_fixed": name}
            result |= {"ratio": speed.mean, "error": speed.error}
            for quantile in (0.5, 0.95):
                ratio = Spread.of(paces(found, quantile) / paces(fixed, quantile))
                key = f"p{100 * quantile:g}_ms_per_token"
                result |= {f"{key}_ratio": ratio.mean, f"{key}_error": ratio.error}
            print(result, flush=True)
            results.append(result)
    record_bench(
        f"simulator_fairness_{regime}",
        results,
        decoder="8b",
        **asdict(of),
        statement=STATEMENT,
        **settings,
    )
