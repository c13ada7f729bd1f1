"""Quantiles, ratios and what is made of the records of a round."""

from __future__ import annotations

import math

import numpy as np
import pytest
from specsched_client import ServerError
from specsched_client.bench.counters import CountedSteps, counted_between
from specsched_client.bench.load import ClosedLoop
from specsched_client.bench.records import RequestRecord
from specsched_client.bench.report import load_result
from specsched_client.bench.statistics import Ratio, paired_ratio, quantiles
from specsched_client.bench.summary import RoundResult, summarise
from specsched_client.bench.table import load_table, ratio_text
from specsched_protocol.v1.executor_pb2 import StepCounters


def test_quantiles_interpolate_and_nothing_has_none():
    found = quantiles([float(value) for value in range(101)])
    assert (found.p50, found.p95, found.p99) == (50.0, 95.0, 99.0)
    assert quantiles([3.0]).p99 == 3.0
    assert quantiles([]) is None


def test_a_ratio_of_constant_pairs_is_exact():
    ratio = paired_ratio([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_a_ratio_and_its_inverse_are_symmetric():
    values, baselines = [1.1, 1.3, 0.9, 1.2], [1.0, 1.1, 1.0, 0.9]
    ratio, inverse = paired_ratio(values, baselines), paired_ratio(baselines, values)
    assert ratio.mean == pytest.approx(1 / inverse.mean)
    assert ratio.low == pytest.approx(1 / inverse.high)


def test_one_pair_has_no_interval():
    ratio = paired_ratio([3.0], [2.0])
    assert (ratio.mean, ratio.low, ratio.high) == (1.5, None, None)


@pytest.mark.parametrize(
    ("high", "shown"),
    [
        (None, "0.640"),
        (6.4, "0.640 (0.064 to 6.400)"),
        (6.5, "0.640 (unsure: take more repeats)"),
    ],
)
def test_an_interval_that_tells_nothing_is_not_shown(high: float | None, shown: str):
    low = None if high is None else 0.64**2 / high
    assert ratio_text(Ratio(2, 0.64, low, high)) == shown


@pytest.mark.parametrize("confidence", [0.95, 0.99])
@pytest.mark.parametrize("num_pairs", [2, 4, 40])
def test_the_interval_covers_the_true_ratio_as_often_as_it_says(num_pairs: int, confidence: float):
    generator = np.random.default_rng(num_pairs)
    covered = 0
    for _ in range(1000):
        noise = generator.normal(0, 0.1, size=num_pairs)
        values = [1.2 * math.exp(n) for n in noise]
        ratio = paired_ratio(values, [1.0] * num_pairs, confidence=confidence)
        covered += ratio.low <= 1.2 <= ratio.high
    assert abs(covered / 1000 - confidence) <= 3 * math.sqrt(confidence * (1 - confidence) / 1000)


def record(index: int, start: float, first: float, end: float, tokens: int) -> RequestRecord:
    return RequestRecord(
        index, start, end, 5, tokens, first, 1, num_verified_tokens=6, num_accepted_tokens=4
    )


def round_of(*records: RequestRecord, counted: CountedSteps | None = None) -> RoundResult:
    return RoundResult(0, records, counted, None, 0.0)


def test_a_summary_is_worked_out_from_the_records():
    one = round_of(record(0, 10.0, 10.1, 11.1, 11), record(1, 10.5, 10.8, 12.0, 13))
    summary = summarise([one])
    assert summary.tokens_per_s == pytest.approx(24 / 2.0)
    assert summary.requests_per_s == pytest.approx(1.0)
    assert summary.time_to_first_token_ms.p50 == pytest.approx(200)
    assert summary.time_per_output_token_ms.p50 == pytest.approx(100)
    assert summary.tokens_per_s_per_user.p50 == pytest.approx(10)
    # 24 tokens, 8 of them accepted drafts: 16 steps.
    assert summary.accepted_per_step == pytest.approx(0.5)
    assert summary.counted is None


def test_failed_requests_count_but_do_not_time():
    failed = RequestRecord(1, 0.0, 9.0, error="gone")
    summary = summarise([round_of(record(0, 0.0, 1.0, 2.0, 3), failed)])
    assert (summary.num_requests, summary.num_failed_requests) == (2, 1)
    assert summary.time_to_first_token_ms.num_samples == 1


def test_tokens_that_come_at_once_have_no_time_between_them():
    at_once = RequestRecord(0, 0.0, 1.0, 5, 4, 1.0, num_first_tokens=4)
    assert at_once.time_per_output_token_s is None
    assert summarise([round_of(at_once)]).tokens_per_s_per_user is None


def test_a_round_that_brought_no_token_has_no_ratio():
    sound = round_of(record(0, 0.0, 1.0, 2.0, 3))
    failed = round_of(RequestRecord(0, 0.0, 9.0, error="gone"))
    result = load_result(ClosedLoop(1), {"off": [sound], "a": [sound], "b": [sound, failed]})
    assert list(result.ratios) == ["a", "b"], "the second round has no other to go with"
    result = load_result(ClosedLoop(1), {"off": [sound], "a": [sound], "b": [failed]})
    assert list(result.ratios) == ["a"]
    shown = [next(iter(column.cells)) for column in load_table(result).columns]
    assert shown == ["ratio to off", "1", "1.000", "-"]
    assert load_result(ClosedLoop(1), {"off": [failed], "a": [sound]}).ratios == {}


def test_counters_are_differences_and_add_up():
    start = StepCounters(num_steps=5, num_drafted_tokens=10, num_fallback_steps={"late": 2})
    end = StepCounters(
        num_steps=9,
        num_planned_steps=3,
        num_drafted_tokens=30,
        num_scheduled_tokens=8,
        num_fallback_steps={"late": 3, "torn": 1},
    )
    counted = counted_between(start, end)
    assert (counted.num_steps, counted.num_fallback_steps) == (4, {"late": 1, "torn": 1})
    assert counted.budget_share == pytest.approx(8 / 20)
    assert counted.on_plan_share == pytest.approx(3 / 5)
    assert counted.acceptance is None
    both = counted + counted
    assert (both.num_drafted_tokens, both.num_fallback_steps) == (40, {"late": 2, "torn": 2})
    assert counted_between(None, end) is None


def test_counters_that_began_anew_are_no_difference():
    with pytest.raises(ServerError, match="restarted during a round"):
        counted_between(StepCounters(num_steps=5), StepCounters(num_steps=2))
