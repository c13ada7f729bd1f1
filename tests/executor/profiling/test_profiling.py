"""Profiling of a model whose cost is known, on a clock that only the model moves."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from specsched_executor.core import ModelBatch, ModelConfig, TargetOutput
from specsched_executor.profiling import (
    ContextSlope,
    CostProfile,
    ProfileOptions,
    default_sizes,
    fingerprint,
    load_profile,
    profile_model,
    save_profile,
)
from specsched_executor.profiling.run_queue import RunQueue
from specsched_executor.profiling.timing import InterleavedTimer, nobody_waits

CONFIG = ModelConfig(
    name="clockwork",
    num_layers=1,
    hidden_size=8,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=8,
    vocab_size=50,
    max_context_tokens=4096,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_ids=(),
)
OPTIONS = ProfileOptions(sizes=(1, 4, 16, 40, 200), max_requests=8, max_draft_tokens=7)


class Cache:
    num_blocks, block_size = 4096, 16


class Clockwork:
    """Costs 10 ms, 0.5 ms a row and 0.002 ms a token of context; keeps what it ran."""

    def __init__(self, config: ModelConfig = CONFIG) -> None:
        self.config = config
        self.now_ms = 0.0
        self.batches: list[ModelBatch] = []
        self.extra_ms: dict[int, float] = {}

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> Cache:
        self.allocated = (num_blocks, block_size)
        return Cache()

    def forward(self, batch: ModelBatch, kv_cache: Cache) -> TargetOutput:
        self.batches.append(batch)
        rows = len(batch.token_ids)
        self.now_ms += 10.0 + 0.5 * rows + 0.002 * int(batch.context_lens.sum())
        self.now_ms += self.extra_ms.pop(len(self.batches), 0.0)
        return TargetOutput(torch.empty(len(batch.logit_rows), self.config.vocab_size))

    def clock(self) -> float:
        return self.now_ms / 1e3


def run(model: Clockwork, options: ProfileOptions = OPTIONS, **arguments) -> CostProfile:
    arguments = {"waits": nobody_waits, **arguments}
    return profile_model(model, options, "mark", clock=model.clock, **arguments)


def test_costs_are_found_without_their_context():
    profile = run(Clockwork())
    assert profile.context is not None
    assert profile.context.ms_per_token == pytest.approx(0.002)
    message = profile.to_proto()
    assert [cost.tokens for cost in message.verify] == [1, 4, 16, 40, 200]
    for cost in message.verify:
        assert statistics.median(cost.ms) == pytest.approx(10.0 + 0.5 * cost.tokens)
    assert message.context.ms_per_token == pytest.approx(0.002)
    assert message.context.profiled_tokens_per_request == 0.0
    assert (message.capture_limit, message.fingerprint) == (0, "mark")


def test_steps_look_like_verification():
    model = Clockwork()
    run(model)
    blocks, block_size = model.allocated
    for batch in model.batches:
        lengths, contexts = batch.query_start_loc.diff(), batch.context_lens
        requests, rows = len(lengths), len(batch.token_ids)
        assert requests <= OPTIONS.max_requests
        assert lengths.sum() == rows == len(batch.logit_rows)
        assert lengths.max() - lengths.min() <= 1
        last_rows = batch.query_start_loc[1:] - 1
        assert torch.equal(batch.positions[last_rows], contexts - 1)
        assert len(set(batch.slot_mapping.tolist())) == rows
        assert int(batch.block_tables.max()) < blocks
        needed = -(-contexts // block_size)
        assert (needed <= batch.block_tables.shape[1]).all()


def test_everything_is_warmed_up_before_anything_is_timed():
    model = Clockwork()
    run(model)
    rows = [len(batch.token_ids) for batch in model.batches]
    num_shapes = len(OPTIONS.sizes) + 4
    assert rows[:5] == [200, 40, 16, 4, 1]
    shapes = [(len(b.token_ids), int(b.context_lens[0])) for b in model.batches]
    assert set(shapes) == set(shapes[:num_shapes])
    # The first one once for the caches, then each for its time.
    assert rows[num_shapes : num_shapes + 6] == [1, 1, 4, 16, 40, 200]


def test_one_slow_sample_does_not_move_the_median():
    model = Clockwork()
    model.extra_ms = {12: 500.0}
    verify = run(model).verify
    slow = [size for size, samples in verify.items() if max(samples) > 400]
    assert len(slow) == 1
    assert statistics.median(verify[slow[0]]) < 200


def test_rounds_end_with_the_time_but_never_below_the_least():
    assert all(len(s) == 9 for s in run(Clockwork()).verify.values())
    short = replace(OPTIONS, max_seconds=0.0)
    assert all(len(s) == 3 for s in run(Clockwork(), short).verify.values())


def test_progress_never_falls_and_ends_complete():
    calls: list[tuple[int, int]] = []
    run(Clockwork(), progress=lambda done, total: calls.append((done, total)))
    done = [call[0] for call in calls]
    assert done == sorted(done)
    assert done[0] == 1
    assert calls[-1][0] == calls[-1][1]


def test_drafts_are_timed_by_requests_and_length():
    """A scheduler that took every draft for a full one would draft nothing where short ones pay."""
    model = Clockwork()

    def draft(num_requests: int, num_tokens: int) -> None:
        model.now_ms += 3.0 * num_requests + num_tokens

    profile = run(model, draft=draft)
    by_length = {7: profile.draft, **profile.short_drafts}
    assert sorted(by_length) == [1, 2, 4, 7]
    for length, drafts in by_length.items():
        assert {n: statistics.median(ms) for n, ms in drafts.items()} == {
            n: pytest.approx(3.0 * n + length) for n in (1, 2, 8)
        }
    assert [cost.requests for cost in profile.to_proto().draft] == 4 * [1, 2, 8]


def test_costs_of_short_drafts_are_told_with_their_length():
    profile = run(Clockwork(), draft=lambda n, length: None)
    profile = replace(profile, draft={1: (3.0,)}, short_drafts={4: {1: (2.0,), 8: (2.5,)}})
    costs = [
        (cost.draft_tokens if cost.HasField("draft_tokens") else None, cost.requests, list(cost.ms))
        for cost in profile.to_proto().draft
    ]
    assert costs == [(None, 1, [3.0]), (4, 1, [2.0]), (4, 8, [2.5])]


def test_contexts_are_cut_to_the_models():
    model = Clockwork(replace(CONFIG, max_context_tokens=100))
    profile = run(model)
    assert max(int(batch.context_lens.max()) for batch in model.batches) == 100
    assert profile.context is not None
    tiny = Clockwork(replace(CONFIG, max_context_tokens=10))
    assert run(tiny, replace(OPTIONS, sizes=(1, 2, 3))).context is None
    with pytest.raises(ValueError, match="profiling 200 rows in 8 requests needs a context of 25"):
        run(tiny)


def test_a_suspiciously_fast_sample_is_taken_again():
    now = [0.0]
    costs = {1: iter([10.0, 10.0, 10.0]), 2: iter([20.0, 4.0, 20.0, 20.0]), 4: iter([30.0] * 3)}

    def runner(size: int):
        def step() -> None:
            now[0] += next(costs[size]) / 1e3

        return step

    timer = InterleavedTimer({n: runner(n) for n in costs}, clock=lambda: now[0])
    for _ in range(3):
        timer.round(lambda: None)
    assert timer.samples_ms[2] == pytest.approx((20.0, 4.0, 20.0))
    assert timer.repeat_too_fast() == 1
    assert timer.samples_ms[2] == pytest.approx((20.0, 20.0, 20.0))
    assert timer.samples_ms[4] == pytest.approx((30.0, 30.0, 30.0))


# ===================== Other programs on the cores =====================


class Shared(Clockwork):
    """Shares its cores with a program that takes half of them until it ends."""

    def __init__(self, busy_until_ms: float) -> None:
        super().__init__()
        self._busy_until_ms = busy_until_ms
        self._waited_ms = 0.0

    def forward(self, batch: ModelBatch, kv_cache: Cache) -> TargetOutput:
        began_ms = self.now_ms
        output = super().forward(batch, kv_cache)
        if began_ms < self._busy_until_ms:
            self._waited_ms += self.now_ms - began_ms
            self.now_ms += self.now_ms - began_ms
        return output

    def waits(self) -> float:
        waited_ms, self._waited_ms = self._waited_ms, 0.0
        return waited_ms / 1e3


def test_what_was_disturbed_is_taken_again():
    """All rounds are over by the time that the other program ends."""
    model = Shared(busy_until_ms=20_000.0)
    profile = run(model, waits=model.waits)
    assert not profile.is_disturbed
    assert profile.context is not None
    assert profile.context.ms_per_token == pytest.approx(0.002)
    for cost in profile.to_proto().verify:
        assert list(cost.ms) == pytest.approx(3 * [10.0 + 0.5 * cost.tokens])


def test_disturbed_samples_do_not_count_where_enough_others_are_there():
    model = Shared(busy_until_ms=2_000.0)  # the warm-up and some of the rounds
    profile = run(model, waits=model.waits)
    num_samples = {len(samples) for samples in profile.verify.values()}
    assert num_samples <= set(range(3, 9))
    for cost in profile.to_proto().verify:
        assert max(cost.ms) == pytest.approx(10.0 + 0.5 * cost.tokens)


def test_a_machine_that_stays_busy_ends_the_wait_and_is_told():
    model = Shared(busy_until_ms=float("inf"))
    profile = run(model, replace(OPTIONS, max_retake_seconds=30.0), waits=model.waits)
    rounds_only = Shared(busy_until_ms=float("inf"))
    run(rounds_only, replace(OPTIONS, max_retake_seconds=0.0), waits=rounds_only.waits)
    assert 30.0 <= model.clock() - rounds_only.clock() <= 31.0
    assert profile.is_disturbed
    assert profile.to_proto().disturbed
    assert {len(samples) for samples in profile.verify.values()} == {3}
    assert not run(Clockwork()).to_proto().disturbed


def test_the_least_disturbed_samples_are_used_where_none_is_sound():
    now, waited = [0.0], [0.0]
    waits_ms = iter([8.0, 2.0, 4.0, 6.0])

    def step() -> None:
        waited[0] = next(waits_ms) / 1e3
        now[0] += 10e-3 + waited[0]

    timer = InterleavedTimer({1: step}, clock=lambda: now[0], waits=lambda: waited[0])
    for _ in range(4):
        timer.round(lambda: None)
    assert timer.disturbed_sizes(1) == [1]
    timer.keep_best(2)
    assert timer.samples_ms[1] == pytest.approx((12.0, 14.0))


def test_a_repeat_that_was_disturbed_says_nothing():
    now, waited = [0.0], [0.0]
    costs = {1: iter([10.0]), 2: iter([4.0, 40.0])}

    def runner(size: int):
        def step() -> None:
            ms = next(costs[size])
            waited[0] = 0.02 if ms == 40.0 else 0.0
            now[0] += ms / 1e3

        return step

    timer = InterleavedTimer(
        {n: runner(n) for n in costs}, clock=lambda: now[0], waits=lambda: waited[0]
    )
    timer.round(lambda: None)
    assert timer.repeat_too_fast() == 1
    assert timer.samples_ms[2] == pytest.approx((4.0,))


def write_task(tasks: Path, thread: int, text: str) -> None:
    (tasks / str(thread)).mkdir(exist_ok=True)
    (tasks / str(thread) / "schedstat").write_text(text)


def test_the_thread_that_waited_longest_counts(tmp_path):
    write_task(tmp_path, 1, "500 1000000 3\n")
    write_task(tmp_path, 2, "500 9000000 3\n")
    queue = RunQueue(tmp_path)
    assert queue.longest_wait_s() == 0.0
    write_task(tmp_path, 1, "900 4000000 4\n")
    write_task(tmp_path, 2, "900 9500000 4\n")
    write_task(tmp_path, 3, "0 2000000 1\n")
    assert queue.longest_wait_s() == pytest.approx(3e-3)
    write_task(tmp_path, 3, "0 7000000 1\n")
    assert queue.longest_wait_s() == pytest.approx(5e-3)


@pytest.mark.parametrize("text", ["", "12\n", "a b c\n"])
def test_a_kernel_that_does_not_tell_says_that_nobody_waits(tmp_path, text):
    assert RunQueue(tmp_path / "nothing").longest_wait_s() == 0.0
    write_task(tmp_path, 1, text)
    assert RunQueue(tmp_path).longest_wait_s() == 0.0


def test_threads_that_share_a_core_wait_for_it():
    if not Path("/proc/self/schedstat").is_file():
        pytest.skip("this kernel does not tell")
    done = subprocess.run(
        [sys.executable, "-c", TWO_ON_ONE_CORE], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) > 0.05


TWO_ON_ONE_CORE = """
import os, subprocess, sys, time
from specsched_executor.profiling.run_queue import RunQueue
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
queue = RunQueue()
other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
waited = 0.0
deadline = time.monotonic() + 60
while waited < 0.1 and time.monotonic() < deadline:
    sum(range(100_000))
    waited += queue.longest_wait_s()
other.kill()
other.wait()
print(waited)
"""


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((16, 7, 512), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512)),
        ((1, 7, 8), (1, 2, 3, 4, 6, 8)),
        ((1, 0, 1), (1,)),
        ((4, 4, 30), (1, 2, 3, 4, 6, 8, 12, 16, 20, 30)),
    ],
)
def test_default_sizes(limits, expected):
    assert default_sizes(*limits) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": ()}, "at least one"),
        ({"sizes": (4, 2)}, "rising"),
        ({"min_rounds": 5, "max_rounds": 2}, "min_rounds 5 and max_rounds 2"),
        ({"context_tokens": 2000}, "context_tokens 2000"),
        ({"max_requests": 0}, "max_requests is 0"),
    ],
)
def test_options_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(OPTIONS, **changes)


# ===================== Kept profiles =====================


def test_stored_profile_comes_back_whole(tmp_path):
    profile = run(Clockwork(), draft=lambda n, length: None)
    profile = replace(profile, short_drafts={1: {1: (0.5, 0.6), 8: (1.0,)}, 4: {8: (2.0,)}})
    save_profile(profile, tmp_path / "new")
    assert load_profile(tmp_path / "new", "mark") == profile
    assert load_profile(tmp_path / "new", "other") is None
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".json"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: {**content, "fingerprint": "other"},
        lambda content: {**content, "format": 99},
        lambda content: {**content, "verify_ms": {"1": []}},
        lambda content: {**content, "verify_ms": {"x": [1.0]}},
        lambda content: {**content, "context_ms_per_token": -1.0},
        lambda content: [],
    ],
)
def test_a_damaged_profile_is_measured_again(tmp_path, damage):
    path = save_profile(run(Clockwork()), tmp_path)
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    assert load_profile(tmp_path, "mark") is None
    path.write_text("{")
    assert load_profile(tmp_path, "mark") is None


def test_fingerprint_tells_profiles_apart():
    marks = {
        fingerprint(CONFIG, "float32", "ngram", OPTIONS),
        fingerprint(CONFIG, "bfloat16", "ngram", OPTIONS),
        fingerprint(CONFIG, "float32", "none", OPTIONS),
        fingerprint(replace(CONFIG, num_layers=2), "float32", "ngram", OPTIONS),
        fingerprint(CONFIG, "float32", "ngram", replace(OPTIONS, context_tokens=100)),
    }
    assert len(marks) == 5
    assert fingerprint(CONFIG, "float32", "ngram", OPTIONS) in marks


def test_impossible_profiles():
    with pytest.raises(ValueError, match="name different sizes"):
        CostProfile({1: (1.0,)}, {}, 0, "mark")
    with pytest.raises(ValueError, match="none negative"):
        CostProfile({1: (-1.0,)}, {1: 5}, 0, "mark")
    with pytest.raises(ValueError, match="must be 0 or more"):
        ContextSlope(float("nan"))
