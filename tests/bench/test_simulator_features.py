"""The worth of each learned feature in the simulator: short runs can fail, long ones are recorded.

An instrument for choosing, not evidence about the product; see tests.bench.simulator.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.bench.simulator.bars import STATEMENT, Spread, kept_bounds, runs, speeds, thin_to
from tests.bench.simulator.learning import LearningScheduler
from tests.bench.simulator.machine import load_machine
from tests.bench.simulator.recordings import load_recordings
from tests.bench.simulator.workload import Workload

THROUGHPUT, FULL_DRAFTS = "throughput", "throughput(draft_length=0)"
RAW_CONFIDENCES, AS_PROFILED = "throughput(calibration=0)", "throughput(correction=0)"


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
def test_calibration_mends_a_drafter_that_boasts():
    workload = Workload(load_recordings("sampled").boasting(3.0), 256)
    once = {"rounds": 4, "num_seeds": 1, "scheduler_type": LearningScheduler}
    calibrated, raw = (
        speeds(runs(policy, workload, load_machine(), **once))
        for policy in (THROUGHPUT, RAW_CONFIDENCES)
    )
    assert (calibrated > 1.005 * raw).all()


@pytest.mark.slow
def test_correction_mends_a_wrong_profile():
    """Told that rows take twice as long, few drafts look worth theirs."""
    machine, workload = load_machine().misjudged(2.0), Workload(load_recordings("sampled"), 64)
    once = {"rounds": 4, "num_seeds": 1, "scheduler_type": LearningScheduler}
    corrected, told = (
        runs(policy, workload, machine, **once) for policy in (THROUGHPUT, AS_PROFILED)
    )
    assert np.mean(corrected[0].budgets) > 1.5 * np.mean(told[0].budgets)
    assert (speeds(corrected) > speeds(told)).all()


# ===================== Long runs, on record =====================


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_bench_learned_features(record_bench):
    settings = {"rounds": 8, "num_seeds": 4}
    machine, results = load_machine("8b", "block"), []
    parts = (_slo(machine, settings), _length(machine, settings), _calibration(settings))
    more = (_correction(settings), _left_out(settings))
    for result in itertools.chain(*parts, *more):
        print(result, flush=True)
        results.append(result)
    record_bench("simulator_features", results, decoder="8b", statement=STATEMENT, **settings)


def _slo(machine, settings):
    workload = Workload(load_recordings("sampled"), 64)
    for bound_ms in (9.0, 11.0, 14.0):
        found = runs(f"slo(step_ms={bound_ms})", workload, machine, **settings)
        kept = Spread.of(kept_bounds(found, bound_ms))
        yield {"feature": "slo", "bound_ms": bound_ms, "kept": kept.mean, "error": kept.error}


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


def _calibration(settings):
    for tries in (1.0, 2.0, 3.0):
        recordings = load_recordings("sampled").boasting(tries)
        for concurrency in (64, 256):
            workload = Workload(recordings, concurrency)
            worth = _learned(THROUGHPUT, RAW_CONFIDENCES, workload, load_machine(), settings)
            yield {"feature": "calibration", "tries": tries, "concurrency": concurrency} | worth


def _correction(settings):
    for factor in (0.5, 1.0, 2.0):
        machine = load_machine().misjudged(factor)
        for concurrency in (16, 64):
            workload = Workload(load_recordings("sampled"), concurrency)
            worth = _learned(THROUGHPUT, AS_PROFILED, workload, machine, settings)
            yield {"feature": "correction", "told": factor, "concurrency": concurrency} | worth


def _learned(policy, against, workload, machine, settings):
    found, other = (
        speeds(runs(each, workload, machine, scheduler_type=LearningScheduler, **settings))
        for each in (policy, against)
    )
    ratio = Spread.of(found / other)
    return {"against": against, "ratio": ratio.mean, "error": ratio.error}


def _left_out(settings):
    for feature in ("ranking", "context", "fill"):
        for concurrency in (16, 64, 256):
            workload = Workload(load_recordings("sampled"), concurrency)
            against = f"throughput({feature}=0)"
            found, other = (
                speeds(runs(policy, workload, load_machine(), **settings))
                for policy in (THROUGHPUT, against)
            )
            ratio = Spread.of(found / other)
            yield {
                "feature": feature,
                "concurrency": concurrency,
                "against": against,
                "ratio": ratio.mean,
                "error": ratio.error,
            }
