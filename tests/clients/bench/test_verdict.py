"""The schedule against the best static setting: honest about choice, noise and when to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from specsched_client.bench.statistics import paired_ratio
from specsched_client.bench.sweep.figure import draw_verdicts
from specsched_client.bench.sweep.race import PAIR, settings_behind
from specsched_client.bench.sweep.verdict import BLOCK, Verdict, judge

STATIC = ("off", *(f"fixed({k})" for k in range(1, 8)))
EQUAL = dict.fromkeys(STATIC, 1.0)


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


def test_settings_out_of_the_race_keep_their_ratio_and_count_for_nothing_else():
    steady = [1.0, 1.01] * 4
    speeds = {"slow": [0.5, 0.7] * 2, "lucky": [9.0, 0.1] * 4, "good": steady, "ours": steady}
    verdict = judge(speeds, "ours", ("slow", "lucky"))
    assert verdict.best_static.chosen == ("good", "good")
    assert verdict.half_width == pytest.approx(0.0)
    assert verdict.ratios["slow"] == paired_ratio(steady[:4], speeds["slow"])
    document = verdict.document(0.015)
    assert (document["behind"], document["is_precise"]) == (["slow", "lucky"], True)
    assert document["scheduled_to_static"]["slow"]["num_pairs"] == 4


def test_who_is_behind():
    pace = np.array([1.0, 1.1, 0.9, 1.0])
    noise = np.array([1.0, 1.01, 0.99, 1.0])
    fast = (pace * noise).tolist()
    speeds = {
        "slow": (0.8 * pace).tolist(),
        "near": (0.985 * pace).tolist(),  # within 1 % and the noise of all
        "fast": fast,
        "ours": (0.1 * pace / noise).tolist(),  # what is proved never leaves
    }
    assert settings_behind(speeds, "ours") == ("slow",)
    assert settings_behind(speeds, "ours", every_setting=True) == ()
    once = {name: each[:1] for name, each in speeds.items()}
    assert settings_behind(once, "ours") == ()
    # Who left stays out, were it the fastest.
    left = {"left": [5.0] * 2, "fast": fast, "ours": fast}
    assert settings_behind(left, "ours") == ("left",)
    assert settings_behind(left, "ours", every_setting=True) == ("left",)


def test_two_repeats_of_many_settings_tell_what_is_far_behind():
    rng = np.random.default_rng(4)
    speeds = sampled(rng, 2, 0.02, {**EQUAL, "far": 0.8})
    assert settings_behind(speeds, "throughput") == ("far",)


def sampled(
    rng: np.random.Generator,
    num_repeats: int,
    noise: float,
    static: Mapping[str, float] = EQUAL,
    ours: float = 1.0,
) -> dict[str, list[float]]:
    """A repeat has a pace of its own, and noise on top of it. static: setting -> its true speed."""
    pace = rng.normal(0, 0.1, num_repeats)
    return {
        name: (speed * np.exp(pace + rng.normal(0, noise, num_repeats))).tolist()
        for name, speed in {**static, "throughput": ours}.items()
    }


def measured(speeds: Mapping[str, Sequence[float]], *, every_setting: bool) -> tuple[Verdict, int]:
    """The verdict of a sweep for 1.5 % by blocks, at most all repeats, and its number of rounds."""
    seen: dict[str, list[float]] = {name: [] for name in speeds}
    behind: tuple[str, ...] = ()
    for begun in range(0, len(speeds["throughput"]), PAIR):
        for name in set(speeds) - set(behind):
            seen[name] += speeds[name][begun : begun + PAIR]
        behind = settings_behind(seen, "throughput", every_setting=every_setting)
        if begun % BLOCK + PAIR < BLOCK:
            continue
        verdict = judge(seen, "throughput", behind)
        if verdict.half_width <= 0.015:
            break
    return verdict, sum(map(len, seen.values()))


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


LADDER = dict(zip(STATIC, (0.6, 0.8, 0.95, 0.98, 1.0, 0.99, 0.93, 0.85), strict=True))
"""As static settings lie around the best one."""


@pytest.mark.parametrize(
    ("static", "saved"), [(EQUAL, 0.0), (LADDER, 0.4)], ids=["equal", "ladder"]
)
def test_a_race_saves_rounds_and_changes_no_verdict(static: Mapping[str, float], saved: float):
    """The same repeats with and without it, of 2 % noise; the schedule is as fast as the best."""
    rng = np.random.default_rng(3)
    race, whole = [], []
    for _ in range(150):
        speeds = sampled(rng, 40, 0.02, static)
        race.append(measured(speeds, every_setting=False))
        whole.append(measured(speeds, every_setting=True))
    bias, bias_of_whole = (mean_log_of_best(each) for each in (race, whole))
    assert abs(bias - bias_of_whole) < 0.001
    assert abs(bias) < 0.003
    assert covers_1(race) >= covers_1(whole) - 0.03
    assert sum("fixed(4)" in verdict.behind for verdict, _ in race) <= 3
    num_rounds, num_of_whole = (sum(n for _, n in each) for each in (race, whole))
    assert num_rounds <= (1 - saved) * num_of_whole


def mean_log_of_best(sweeps: Sequence[tuple[Verdict, int]]) -> float:
    return float(np.mean([math.log(verdict.best_static.ratio.mean) for verdict, _ in sweeps]))


def covers_1(sweeps: Sequence[tuple[Verdict, int]]) -> float:
    ratios = [verdict.best_static.ratio for verdict, _ in sweeps]
    return float(np.mean([ratio.low <= 1.0 <= ratio.high for ratio in ratios]))


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
