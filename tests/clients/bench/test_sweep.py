"""The loop of a sweep against a server of known speeds: when it stops, and how it goes on."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from specsched_client import ConnectionFailedError, InvalidRequestError, Sampling, ServerError
from specsched_client.bench.load import ClosedLoop
from specsched_client.bench.prompts import BenchPrompt
from specsched_client.bench.report import LoadResult
from specsched_client.bench.sender import SteadyTimes, Workload
from specsched_client.bench.server_facts import SchedulerFacts
from specsched_client.bench.session import Variant
from specsched_client.bench.steady import Window
from specsched_client.bench.summary import RoundResult
from specsched_client.bench.sweep.plan import SweepPlan
from specsched_client.bench.sweep.run import Sweep, judge_rounds
from specsched_client.bench.sweep.state import FinishedRepeat, SweepState
from specsched_client.bench.sweep.verdict import Verdict
from specsched_protocol.v1 import scheduler_pb2

from tests.clients.bench.known_server import TARGET, KnownServer
from tests.clients.conftest import FakeScheduler, Run

SPEEDS = {"off": 100.0, "fixed(1)": 130.0, "fixed(2)": 140.0, "throughput": 150.0}
"""By policy as it travels: a parameter without a name has its place."""
LOADS = (ClosedLoop(1), ClosedLoop(2))
IDENTITY = {"model": "tiny", "k": 2}
NAMES = ("off", "fixed(1)", "fixed(2)", "throughput")


def plan(**options: Any) -> SweepPlan:
    defaults = {
        "prompts": (BenchPrompt("hello", True),),
        "prompt_file": "prompts.jsonl",
        "target": TARGET,
        "baseline_target": None,
        "scheduler_target": "scheduler",
        "concurrency": (1, 2),
        "fixed": (),
        "policy": "throughput",
        "sampling": Sampling(max_tokens=4),
        "num_requests": 3,
        "seed": 0,
        "timeout_s": None,
        "half_width": 0.015,
        "min_repeats": 4,
        "max_repeats": 16,
    }
    return SweepPlan(**{**defaults, **options})


def sweep(server: KnownServer, directory: Path, **options: Any) -> list[LoadResult]:
    """Run a sweep of all loads, or go on with it."""
    chosen = plan(**options)
    work = Workload([[1, 2]], 0, chosen.sampling)

    async def measure() -> list[LoadResult]:
        with SweepState.open(directory / "state.jsonl", IDENTITY, NAMES) as state:
            return await Sweep(chosen, chosen.variants(2), server.session(), work, state).run()

    return asyncio.run(measure())


def verdict(result: LoadResult) -> Verdict:
    return judge_rounds(plan(), result.rounds)


def fail_after(num_requests: int, error: Exception) -> Callable[[], None]:
    """Raise it before every request but the first ones."""
    countdown = iter(range(num_requests))

    def before_request() -> None:
        if next(countdown, None) is None:
            raise error

    return before_request


def test_known_speeds_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = sweep(KnownServer(monkeypatch, SPEEDS), tmp_path)
    assert [result.load for result in results] == list(LOADS)
    for result in results:
        found = verdict(result)
        assert found.num_repeats == 4  # without noise no more is needed
        assert found.best_static.chosen == ("fixed(2)", "fixed(2)")
        assert found.best_static.ratio.mean == pytest.approx(150 / 140)
        assert found.ratios["off"].mean == pytest.approx(1.5)


def test_settings_alternate_and_every_other_repeat_runs_backwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = KnownServer(monkeypatch, SPEEDS)
    sweep(server, tmp_path, concurrency=(1,), every_setting=True)
    order = [title.rpartition(", ")[2] for title in server.titles]
    forward = ["off", "fixed(1)", "fixed(2)", "throughput"]
    assert order == forward + 2 * (forward + forward[::-1])  # the warm-up first


def test_noise_is_met_with_repeats_up_to_the_cap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few, many, capped = (
        verdict(sweep(server, tmp_path / str(place), concurrency=(1,), max_repeats=64)[0])
        for place, server in enumerate(
            KnownServer(monkeypatch, SPEEDS, noise) for noise in (0.001, 0.02, 0.5)
        )
    )
    assert few.num_repeats == 4
    assert 4 < many.num_repeats < 64
    assert many.half_width <= 0.015
    assert (capped.num_repeats, capped.half_width > 0.015) == (64, True)


def test_settings_clearly_behind_are_measured_no_further(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"concurrency": (1,), "half_width": 0.001}
    server = KnownServer(monkeypatch, SPEEDS, 0.01)
    (raced,) = sweep(server, tmp_path / "race", **options)
    found = verdict(raced)
    assert found.behind == ("off", "fixed(1)")
    num_rounds = {name: len(each) for name, each in raced.rounds.items()}
    assert num_rounds["fixed(2)"] == num_rounds["throughput"] == found.num_repeats == 16
    assert num_rounds["off"] == 2  # by 40 %, at the first look
    assert found.ratios["off"].num_pairs == 2
    assert len(server.titles) == len(SPEEDS) + sum(num_rounds.values())
    (whole,) = sweep(
        KnownServer(monkeypatch, SPEEDS, 0.01), tmp_path / "all", every_setting=True, **options
    )
    assert {len(each) for each in whole.rounds.values()} == {16}
    assert judge_rounds(plan(every_setting=True), whole.rounds).behind == ()


def test_an_interrupted_sweep_ends_like_one_that_was_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    undisturbed = sweep(KnownServer(monkeypatch, SPEEDS, 0.02), tmp_path / "whole")
    num_interruptions = 0
    while True:
        server = KnownServer(monkeypatch, SPEEDS, 0.02)
        # Each time in another place of another repeat.
        server.before_request = fail_after(
            60 + 7 * num_interruptions, ConnectionFailedError("gone")
        )
        try:
            resumed = sweep(server, tmp_path / "pieces")
            break
        except ConnectionFailedError:
            num_interruptions += 1
    assert num_interruptions >= 2
    for ours, whole in zip(map(verdict, resumed), map(verdict, undisturbed), strict=True):
        assert 4 <= ours.num_repeats == whole.num_repeats
        assert ours.behind == whole.behind
        assert ours.best_static.chosen == whole.best_static.chosen
        assert asdict(ours.best_static.ratio) == pytest.approx(asdict(whole.best_static.ratio))


def test_a_finished_sweep_asks_nothing_more_and_can_be_made_more_precise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = sweep(KnownServer(monkeypatch, SPEEDS, 0.02), tmp_path, half_width=1.0)
    server = KnownServer(monkeypatch, SPEEDS, 0.02)
    again = sweep(server, tmp_path, half_width=1.0)
    assert server.titles == []
    assert again == first
    better = sweep(server, tmp_path, half_width=0.02, concurrency=(1, 2, 3))
    assert len(better) == 3
    assert verdict(better[0]).num_repeats > verdict(first[0]).num_repeats


def test_a_repeat_with_a_failed_request_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = KnownServer(monkeypatch, SPEEDS)
    # After the warm-up, and two repeats of 4 settings and 3 requests.
    server.before_request = fail_after(28, ServerError("out of memory"))
    with pytest.raises(ServerError, match="3 requests failed, the first with: out of memory"):
        sweep(server, tmp_path)
    with SweepState.open(tmp_path / "state.jsonl", IDENTITY, NAMES) as state:
        assert state.num_repeats == 2


def test_time_goes_to_every_load_first_and_then_to_the_least_precise_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = KnownServer(monkeypatch, SPEEDS, 0.05)
    # A repeat takes about 0.4 s of the server's time.
    results = sweep(server, tmp_path, max_seconds=7.0, max_repeats=64)
    found = [verdict(result) for result in results]
    assert min(each.num_repeats for each in found) >= 4
    assert 12 <= sum(each.num_repeats for each in found) <= 24
    assert {title.partition(",")[0] for title in server.titles[20:40]} == {"concurrency 2"}


def test_a_block_that_time_would_cut_is_not_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = KnownServer(monkeypatch, SPEEDS, 0.05)
    # A block takes about 1.5 s of the server's time.
    (only,) = sweep(server, tmp_path, concurrency=(1,), max_seconds=2.5, every_setting=True)
    assert verdict(only).half_width > 0.015
    with SweepState.open(tmp_path / "state.jsonl", IDENTITY, NAMES) as state:
        assert state.num_repeats == 4


def test_a_load_without_a_block_of_repeats_is_left_out_and_finished_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (only,) = sweep(KnownServer(monkeypatch, SPEEDS), tmp_path, max_seconds=1.8)
    assert only.load == LOADS[0]
    with SweepState.open(tmp_path / "state.jsonl", IDENTITY, NAMES) as state:
        assert 0 < len(state.repeats(LOADS[1])) < 4
    assert len(sweep(KnownServer(monkeypatch, SPEEDS), tmp_path)) == 2


class SteadySession:
    """Rounds in which each setting gets through a number of requests of its own."""

    def __init__(self, num_requests: Mapping[str, int]) -> None:
        self.asked: list[tuple[tuple[str, ...], Workload]] = []
        self._num_requests = num_requests

    async def warm_up(self, variants: Sequence[Variant], load: ClosedLoop, work: Workload) -> None:
        assert [variant.name for variant in variants] == ["throughput"]

    async def run_repeat(
        self, variants: Sequence[Variant], load: ClosedLoop, work: Workload, repeat: int, title: str
    ) -> dict[str, RoundResult]:
        self.asked.append((tuple(variant.name for variant in variants), work))
        return {
            variant.name: RoundResult(
                repeat,
                records=(),  # none has to end in the window
                counted=None,
                plan_latency=None,
                load_average=0.0,
                window=Window(1.0, 1.5, 3.5, int(SPEEDS[variant.name]), num_requests),
            )
            for variant in variants
            for num_requests in (self._num_requests[variant.name] + repeat,)
        }


def test_steady_rounds_go_on_behind_the_furthest_one_of_the_repeat_before(tmp_path: Path) -> None:
    session = SteadySession({"off": 5, "fixed(1)": 9, "fixed(2)": 7, "throughput": 8})
    chosen = plan(
        concurrency=(1,),
        num_requests=None,
        round_seconds=2.0,
        half_width=1e-9,
        max_repeats=8,
        every_setting=True,
    )
    work = Workload([[1, 2]], 0, chosen.sampling)

    async def measure() -> list[LoadResult]:
        with SweepState.open(tmp_path / "state.jsonl", IDENTITY, NAMES) as state:
            return await Sweep(chosen, chosen.variants(2), session, work, state).run()

    for _ in range(2):  # the second one finds all in the file
        (result,) = asyncio.run(measure())
        assert result.summaries["off"].num_requests == 0
        assert verdict(result).ratios["off"].mean == pytest.approx(1.5)
    assert [each.first_index for _, each in session.asked] == [0, 9, 19, 30]
    assert {each.steady for _, each in session.asked} == {SteadyTimes(0.3, 2.0)}


# ===================== The file =====================


def test_a_line_cut_short_is_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sweep(KnownServer(monkeypatch, SPEEDS), tmp_path)
    file = tmp_path / "state.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    with SweepState.open(file, IDENTITY, NAMES) as state:
        assert state.num_repeats == 7
    assert sweep(KnownServer(monkeypatch, SPEEDS), tmp_path)
    assert len(file.read_bytes().splitlines()) == len(whole.splitlines())


def test_other_servers_and_settings_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "state.jsonl"
    with (
        SweepState.open(file, IDENTITY, NAMES),
        pytest.raises(InvalidRequestError, match="another sweep is writing it"),
    ):
        SweepState.open(file, IDENTITY, NAMES).__enter__()
    file.write_text('{"format": 2, "model": "tiny", "k": 2}\n')
    with pytest.raises(InvalidRequestError, match="another sweep: k is 2, here 3"):
        SweepState.open(file, {**IDENTITY, "k": 3}, NAMES).__enter__()
    file.write_text('{"format": 2, "model": "tiny", "k": 2}\nnonsense\n')
    with pytest.raises(InvalidRequestError, match="line 2: no finished repeat: Invalid JSON"):
        SweepState.open(file, IDENTITY, NAMES).__enter__()
    file.write_text('{"format": 1, "model": "tiny", "k": 2}\n')
    with pytest.raises(InvalidRequestError, match="another sweep: format is 1, here 2"):
        SweepState.open(file, IDENTITY, NAMES).__enter__()
    file.write_text("[]\n")
    with pytest.raises(InvalidRequestError, match="it holds no sweep"):
        SweepState.open(file, IDENTITY, NAMES).__enter__()


def test_a_sweep_against_other_policies_is_another_sweep(tmp_path: Path) -> None:
    facts = SchedulerFacts("1", "off", ("off", "ratio", "throughput"), None, "cpu", "dspark", 3)

    def open_state(**options: Any) -> None:
        asked = plan(**options)
        variants = asked.variants(3)
        names = [variant.name for variant in variants]
        identity = asked.identity(variants, [], facts)
        with SweepState.open(tmp_path / "state.jsonl", identity, names) as state:
            state.add(FinishedRepeat(ClosedLoop(1), state.num_repeats, {}, 1))

    open_state(against=("off", "ratio"))
    with pytest.raises(InvalidRequestError, match=r"another sweep: variants is .*'ratio'"):
        open_state(against=("off", "fixed(1)"))
    with pytest.raises(InvalidRequestError, match="another sweep: variants is"):
        open_state()


@pytest.mark.parametrize(
    "foreign", ["notes without an end", '{"precious": 1}\nnotes', "a\nb", '{"format": 1']
)
def test_a_foreign_file_is_refused_untouched(tmp_path: Path, foreign: str) -> None:
    file = tmp_path / "state.jsonl"
    file.write_text(foreign)
    with pytest.raises(InvalidRequestError, match=r"it holds (no|another) sweep"):
        SweepState.open(file, IDENTITY, NAMES).__enter__()
    assert file.read_text() == foreign


def test_nothing_is_written_before_the_first_repeat(tmp_path: Path) -> None:
    file = tmp_path / "state.jsonl"
    with SweepState.open(file, IDENTITY, NAMES):
        pass
    with SweepState.open(file, {**IDENTITY, "k": 3}, ("off",)) as state:
        assert state.num_repeats == 0


def double(repeats: list[Any]) -> None:
    repeats[3] = repeats[2]


def lose_a_variant(repeats: list[Any]) -> None:
    del repeats[3]["rounds"]["off"]


def misnumber_a_round(repeats: list[Any]) -> None:
    repeats[3]["rounds"]["off"]["repeat"] = 9


def lose_the_requests(repeats: list[Any]) -> None:
    repeats[3]["rounds"]["off"]["records"] = []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (double, "repeat 2 of concurrency 1; accepted: 3"),
        (lose_a_variant, r"rounds of fixed\(1\), .*; accepted: one of each of off"),
        (misnumber_a_round, "repeat 9 of concurrency 1; accepted: 3"),
        (lose_the_requests, "the round of off has no finite speed"),
    ],
)
def test_a_spoilt_repeat_is_refused_by_its_line(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    spoil: Callable[[list[Any]], None],
    message: str,
) -> None:
    sweep(KnownServer(monkeypatch, SPEEDS), tmp_path, every_setting=True)
    file = tmp_path / "state.jsonl"
    header, *repeats = map(json.loads, file.read_text().splitlines())
    spoil(repeats)
    spoilt = "".join(json.dumps(line) + "\n" for line in (header, *repeats)) + "torn"
    file.write_text(spoilt)
    with pytest.raises(InvalidRequestError, match=f"state.jsonl, line 5: {message}"):
        SweepState.open(file, IDENTITY, NAMES).__enter__()
    assert file.read_text() == spoilt


def test_a_setting_that_left_the_race_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sweep(KnownServer(monkeypatch, SPEEDS, 0.01), tmp_path, concurrency=(1,), half_width=0.001)
    file = tmp_path / "state.jsonl"
    header, *repeats = map(json.loads, file.read_text().splitlines())
    assert "off" not in repeats[2]["rounds"]
    repeats[3]["rounds"]["off"] = {**repeats[1]["rounds"]["off"], "repeat": 3}
    file.write_text("".join(json.dumps(line) + "\n" for line in (header, *repeats)))
    with pytest.raises(InvalidRequestError, match=r"line 5: rounds of .*, off; accepted: one of"):
        SweepState.open(file, IDENTITY, NAMES).__enter__()


# ===================== The plan =====================


def test_variants_are_none_fixed_and_the_schedule() -> None:
    names = [variant.name for variant in plan(baseline_target="plain").variants(3)]
    assert names == ["off", "none", "fixed(1)", "fixed(2)", "fixed(3)", "throughput"]
    assert [variant.name for variant in plan(fixed=(2,)).variants(3)][1] == "fixed(2)"
    compared = plan(against=("ratio", "fixed(1)")).variants(3)
    assert [variant.name for variant in compared] == ["ratio", "fixed(1)", "throughput"]


def test_a_report_tells_what_was_compared_with_what() -> None:
    asked = plan(fixed=(2,), baseline_target="plain")
    settings = json.loads(json.dumps(asked.settings(asked.variants(3))))
    assert settings["policy"] == "throughput"
    assert settings["against"] == ["off", "none", "fixed(2)"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": (1, 1)}, "--concurrency .*each once"),
        ({"half_width": math.nan}, "--half-width nan; accepted: a finite number above 0"),
        ({"half_width": math.inf}, "--half-width inf"),
        ({"half_width": 0.0}, "--half-width 0.0"),
        ({"round_seconds": -1.0, "num_requests": None}, "--round-seconds -1.0; accepted: a finite"),
        ({"round_seconds": 1.0}, "--num-requests has no effect with --round-seconds"),
        ({"num_processes": 2}, "--clients has no effect without --round-seconds"),
        ({"settle_seconds": 0.0}, "--settle-seconds has no effect without --round-seconds"),
        (
            {"settle_seconds": math.inf, "round_seconds": 1.0, "num_requests": None},
            "--settle-seconds inf; accepted: a finite number, 0 or more",
        ),
        ({"settle_seconds": math.nan}, "--settle-seconds nan"),
        ({"max_seconds": 0.0}, "--max-seconds 0.0; accepted: a finite"),
        ({"timeout_s": math.nan}, "--timeout nan; accepted: a finite number above 0"),
        ({"fixed": (0,)}, "--fixed .*1 or more"),
        ({"min_repeats": 6}, "--min-repeats 6; accepted: multiples of 4"),
        ({"max_repeats": 0}, "--max-repeats 0"),
        ({"min_repeats": 20}, "--max-repeats 16; accepted: --min-repeats or more"),
        ({"baseline_target": TARGET}, "is the target itself"),
        ({"policy": "fixed("}, "policy 'fixed\\(' cannot be read; accepted"),
        ({"against": ("fixed(",)}, "policy 'fixed\\(' cannot be read; accepted"),
        ({"against": ("off",), "fixed": (1,)}, "--fixed has no effect with --against"),
    ],
)
def test_what_cannot_be_swept_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        plan(**options)


def test_lengths_are_bounded_by_the_executors_drafts() -> None:
    with pytest.raises(InvalidRequestError, match="--fixed 7; accepted: up to 3"):
        plan(fixed=(1, 7)).variants(3)
    with pytest.raises(InvalidRequestError, match="no executor that drafts is attached"):
        plan().variants(None)
    with pytest.raises(InvalidRequestError, match="--policy off is one of the static settings"):
        plan(policy="off").variants(3)
    with pytest.raises(InvalidRequestError, match="--against off, throughput; accepted: each once"):
        plan(against=("off", "throughput")).variants(3)


def test_a_scheduler_that_nobody_follows_is_not_swept(
    run: Run, start_scheduler: Callable[..., FakeScheduler], tmp_path: Path
) -> None:
    class Shadow(FakeScheduler):
        def GetStatus(self, request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
            status = super().GetStatus(request, context)
            status.attachments[0].lane_status.role = scheduler_pb2.LANE_ROLE_SHADOW
            return status

    start_scheduler("second", Shadow())
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello"}')
    code, _, error = run("bench", "sweep", "--prompts", str(prompts), "--output", str(tmp_path))
    assert (code, "LANE_ROLE_SHADOW: its executor follows another" in error) == (2, True), error


@pytest.mark.parametrize("option", ["--policy", "--against"])
def test_an_unknown_policy_is_refused_before_the_folder_is_touched(
    option: str, run: Run, start_scheduler: Callable[..., FakeScheduler], tmp_path: Path
) -> None:
    start_scheduler("only")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello"}')
    folder = tmp_path / "sweep"
    options = ("--prompts", str(prompts), "--output", str(folder), option, "troughput")
    code, _, error = run("bench", "sweep", *options)
    assert (code, f"{option} troughput; accepted by" in error) == (2, True), error
    assert not folder.exists()
