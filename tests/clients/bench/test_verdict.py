"""The schedule against the best static setting: honest about choice, noise and when to stop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from specsched_client.bench.statistics import paired_ratio
from specsched_client.bench.sweep.figure import draw_verdicts
from specsched_client.bench.sweep.verdict import BLOCK, judge

STATIC = ("off", *(f"fixed({k})" for k in range(1, 8)))


def test_each_half_is_compared_with_the_best_of_the_other():
    # Repeats 0, 1, 4, 5 are the first half; "late" is best there, and only there.
    speeds = {
        "early": [1.0, 1.0, 4.0, 4.0, 1.0, 1.0, 4.0, 4.0],
        "late": [2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0],
        "ours": [3.0] * 8,
    }
    verdict = judge(speeds, "ours")
    assert verdict.best_static.chosen == ("late", "early")
    # The first half is held against "early", the second one against "late".
    assert verdict.best_static.ratio.mean == pytest.approx(3.0)
    assert verdict.best_static.ratio.half_width == pytest.approx(0.0)
    assert verdict.ratios["early"].mean == pytest.approx(3.0 / 2.0)
    assert list(verdict.ratios) == ["early", "late"]


def test_the_widest_interval_counts():
    steady = [1.0, 1.01] * 4
    shaky = [1.0, 2.0] * 4
    verdict = judge({"steady": steady, "shaky": shaky, "ours": steady}, "ours")
    assert verdict.half_width == pytest.approx(paired_ratio(steady, shaky).half_width)
    document = verdict.document(0.015)
    assert (document["num_repeats"], document["is_precise"]) == (8, False)
    assert judge({"a": steady, "ours": steady}, "ours").document(0.015)["is_precise"]


def sampled(rng: np.random.Generator, num_repeats: int, noise: float) -> dict[str, list[float]]:
    """All settings are equally fast; a repeat has a pace of its own, and noise on top of it."""
    pace = rng.normal(0, 0.1, num_repeats)
    return {
        name: np.exp(pace + rng.normal(0, noise, num_repeats)).tolist()
        for name in (*STATIC, "throughput")
    }


def test_choosing_the_best_does_not_bias_its_ratio():
    """By all repeats, eight equal settings would have the best of them 1.7 % ahead."""
    rng = np.random.default_rng(1)
    logs, naive = [], []
    for _ in range(600):
        speeds = sampled(rng, 8, 0.03)
        logs.append(math.log(judge(speeds, "throughput").best_static.ratio.mean))
        best = max(STATIC, key=lambda name: sum(np.log(speeds[name])))
        naive.append(math.log(paired_ratio(speeds["throughput"], speeds[best]).mean))
    error = np.std(logs) / math.sqrt(len(logs))
    assert abs(np.mean(logs)) < 4 * error < 0.004
    assert np.mean(naive) < -0.01


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.05])
def test_intervals_cover_the_truth_when_repeats_go_on_until_they_are_narrow(noise: float):
    """Stopping at a narrow interval costs some coverage: 95 % become 93 % or little less."""
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(400):
        speeds = sampled(rng, 40, noise)
        for num_repeats in range(8, 41, BLOCK):
            verdict = judge(
                {name: each[:num_repeats] for name, each in speeds.items()}, "throughput"
            )
            if verdict.half_width <= 0.015:
                break
        ratio = verdict.best_static.ratio
        covered += ratio.low <= 1.0 <= ratio.high
    assert 0.90 <= covered / 400 <= 0.99


def test_a_verdict_is_drawn_with_a_line_for_each_setting(tmp_path):
    generator = np.random.default_rng(0)
    names = (*STATIC, "throughput")
    results = [
        {
            "load": {"concurrency": users},
            "verdict": judge(
                {name: generator.lognormal(size=8).tolist() for name in names}, "throughput"
            ).document(0.015),
        }
        for users in (1, 8, 64)
    ]
    document = {"settings": {"policy": "throughput"}, "results": results}
    png, svg = draw_verdicts(document, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert svg.read_text(encoding="utf-8").count("<!-- to ") == len(STATIC) + 1
