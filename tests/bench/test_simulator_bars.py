"""The worth of each learned feature in the simulator: short runs can fail, long ones are recorded.

An instrument for choosing, not evidence about the product; see tests.bench.simulator.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from tests.bench.simulator.bars import (
    Regime,
    Spread,
    best_fixed,
    kept_bounds,
    paces,
    runs,
    speeds,
    thin_to,
)
from tests.bench.simulator.machine import load_machine
from tests.bench.simulator.recordings import load_recordings
from tests.bench.simulator.workload import Workload

STATEMENT = "A simulation: an instrument for choosing, not evidence about the product."
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
THROUGHPUT, FULL_DRAFTS = "throughput", "throughput(draft_length=0)"
OLD_SURVIVALS = "throughput(anticipation=0)"
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


def one_speed(policy: str, workload: Workload, rounds: int = 8) -> float:
    (result,) = runs(policy, workload, load_machine(), rounds=rounds, num_seeds=1)
    return result.tokens_per_second


@pytest.mark.slow
def test_a_drafter_that_brings_little_costs_little():
    """0.16 accepted tokens per draft: within 2 % of no drafts, where always drafting costs."""
    workload = Workload(thin_to(load_recordings("sampled"), 0.16), 16)
    off = one_speed("off", workload)
    learned = one_speed(THROUGHPUT, workload)
    assert learned > 0.98 * off
    assert one_speed(FULL_DRAFTS, workload) < 0.995 * learned


@pytest.mark.slow
def test_a_drafter_that_brings_much_is_used():
    """2 accepted tokens per draft: no loss against always drafting."""
    workload = Workload(thin_to(load_recordings("greedy"), 2.0), 16)
    learned, full = one_speed(THROUGHPUT, workload), one_speed(FULL_DRAFTS, workload)
    assert learned > 0.995 * full


@pytest.mark.slow
def test_short_drafts_are_found_where_long_ones_do_not_pay():
    """256 requests: the likeliest first drafts are worth their rows, but no fixed length is."""
    workload = Workload(load_recordings("sampled"), 256)
    assert one_speed(THROUGHPUT, workload) > 1.015 * one_speed("off", workload)


@pytest.mark.slow
def test_slo_keeps_its_bound_where_it_can_be_kept():
    machine, workload = load_machine(), Workload(load_recordings("sampled"), 64)
    bound_ms = 14.0
    kept, free = (
        kept_bounds(runs(name, workload, machine, rounds=4, num_seeds=1), bound_ms)
        for name in (f"slo(step_ms={bound_ms})", "throughput")
    )
    assert kept[0] >= 0.99
    assert free[0] < 0.95


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
@pytest.mark.parametrize("regime", REGIMES)
def test_bench_throughput_against_the_best_fixed_length(record_bench, regime):
    settings = {"rounds": 8, "num_seeds": 8}
    of, results = REGIMES[regime], []
    machine = of.machine
    for concurrency in CONCURRENCIES:
        workload = of.workload(concurrency)
        name, fixed = best_fixed(workload, machine, **settings)
        ratio = Spread.of(speeds(runs(THROUGHPUT, workload, machine, **settings)) / speeds(fixed))
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


@pytest.mark.bench
def test_bench_learned_features(record_bench):
    settings = {"rounds": 8, "num_seeds": 4}
    machine = load_machine("8b", "block")
    results = [*_slo(machine, settings), *_length(machine, settings)]
    results += _anticipation(settings)
    for result in results:
        print(result)
    record_bench("simulator_features", results, decoder="8b", statement=STATEMENT, **settings)


def _slo(machine, settings):
    workload = Workload(load_recordings("sampled"), 64)
    for bound_ms in (9.0, 11.0, 14.0):
        found = runs(f"slo(step_ms={bound_ms})", workload, machine, **settings)
        kept = Spread.of(kept_bounds(found, bound_ms))
        yield {"feature": "slo", "bound_ms": bound_ms, "kept": kept.mean, "error": kept.error}


def _anticipation(settings):
    for drafter in ("block", "lookup"):
        machine = load_machine("8b", drafter)
        for concurrency in (1, 4, 16, 64):
            workload = Workload(load_recordings("sampled"), concurrency)
            found, other = (
                runs(policy, workload, machine, **settings)
                for policy in (THROUGHPUT, OLD_SURVIVALS)
            )
            ratio = Spread.of(speeds(found) / speeds(other))
            yield {
                "feature": "anticipation",
                "drafter": drafter,
                "concurrency": concurrency,
                "against": OLD_SURVIVALS,
                "ratio": ratio.mean,
                "error": ratio.error,
            }


def _length(machine, settings):
    cases = (("sampled", 0.16, "off"), ("greedy", 2.0, FULL_DRAFTS))
    for kind, accepted, against in cases:
        recordings = thin_to(load_recordings(kind), accepted)
        for concurrency in (1, 16, 128):
            workload = Workload(recordings, concurrency)
            found = runs(THROUGHPUT, workload, machine, **settings)
            other = runs(against, workload, machine, **settings)
            ratio = Spread.of(speeds(found) / speeds(other))
            apart = [np.diff(np.flatnonzero(np.diff(r.lengths))) for r in found]
            yield {
                "feature": "draft length",
                "accepted_per_draft": accepted,
                "concurrency": concurrency,
                "against": against,
                "ratio": ratio.mean,
                "error": ratio.error,
                "min_steps_between_changes": min(
                    (int(each.min()) for each in apart if len(each)), default=None
                ),
            }
