"""Mutated memory: neither end crashes, hangs, reads out of range or takes an impossible budget.

Each test mutates for a bounded time from a seed that a failure names.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.plan import NO_BUDGET_CAP, FallbackReason, StepDecision
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import (
    RegionError,
    RegionShape,
    create_executor_region,
    create_lane_region,
    open_executor_region,
    open_lane_region,
)
from specsched_protocol.shm.layout import HEADER_WORDS

from tests.executor.transport.test_shared_memory import FakeScheduler, attach
from tests.protos.builders import make_report, make_request, make_rows
from tests.scheduler_service.planner.rig import MAX_REQUESTS, K, Rig

SECONDS = float(os.environ.get("SPECSCHED_FUZZ_SECONDS", "1.5"))
SEED = int(os.environ.get("SPECSCHED_FUZZ_SEED", str(time.time_ns() % 1_000_000)))
INTERESTING = (0, 1, -1, 2, 3, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 62, -(1 << 62), 1 << 63)


def value(rng: random.Random) -> int:
    """A word that has a chance to be believed, or none at all."""
    kind = rng.randrange(4)
    if kind == 0:
        word = rng.choice(INTERESTING)
    elif kind == 1:
        word = rng.getrandbits(64)
    elif kind == 2:
        word = rng.randrange(64)
    else:
        floats = (float("nan"), float("inf"), -1.0, 1e300, 0.5)
        return int(np.array([rng.choice(floats)]).view(np.int64)[0])
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


def mutate(rng: random.Random, words: np.ndarray, first: int) -> None:
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(first, len(words))
        words[at] ^= value(rng) if rng.random() < 0.3 else words[at] ^ value(rng)


def rounds() -> Iterator[random.Random]:
    """One generator of mutations per round until time is over."""
    end, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        number += 1
        yield random.Random(SEED * 1_000_003 + number)
    assert number > 20


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def test_planner_outlives_a_mutated_executor_region(rig: Rig):
    planner = rig.attach()
    rig.plan(make_request(3), make_rows(1))
    words = rig.transport._region.words
    doorbell = int(rig.transport._lanes.view.doorbells[0])
    for step, rng in enumerate(rounds(), 4):
        rig.transport.publish(make_rows(step - 2), make_request(step))
        rig.transport.report(make_report(step))
        mutate(rng, words, HEADER_WORDS)
        os.eventfd_write(doorbell, 1)
        planner.drain_reports()
        planner.drain_confidences()
        decision = rig.transport.read(step)
        if isinstance(decision, StepDecision):
            assert 0 <= decision.budget <= 12, SEED
        assert planner.is_running, SEED
    # Whole again, it is decided as ever.
    words[HEADER_WORDS:] = 0
    sound = Rig.plan
    rig.transport._request.fixed[:] = 0
    rig.transport._request.fixed[0] = 1 << 20
    rig.transport._rows.fixed[:] = 0
    assert isinstance(sound(rig, make_request(9_999_999), make_rows(9_999_997)), StepDecision), SEED


def test_executor_takes_nothing_impossible_from_a_mutated_lane(tmp_path: Path):
    shape = RegionShape(MAX_REQUESTS, K, num_report_slots=4)
    transport = SharedMemoryTransport(RunDir.open(tmp_path / "run"), shape)
    schedulers: list[FakeScheduler] = [attach(transport), attach(transport, activate=False)]
    num_followed = 0
    for step, rng in enumerate(rounds(), 3):
        request = make_request(step, max_budget=rng.choice((NO_BUDGET_CAP, 5)))
        transport.publish(make_rows(step - 2), request)
        for scheduler in schedulers:
            scheduler.decide(step)
            if rng.random() < 0.8:
                mutate(rng, scheduler.lane.words, HEADER_WORDS)
        answer = transport.read(step)
        transport.report(make_report(step))
        transport.compare_shadows()
        if isinstance(answer, FallbackReason):
            continue
        num_followed += 1
        assert 0 <= answer.budget <= min(request.max_budget, 12), SEED
        assert (answer.epoch, answer.source_step_id) == (schedulers[0].epoch, step - 2), SEED
        assert answer.max_verify_len == NO_BUDGET_CAP or 0 <= answer.max_verify_len <= K, SEED
        assert 0 <= answer.next_draft_tokens <= K, SEED
        assert np.isfinite([answer.expected_tokens, answer.expected_ms, answer.fairness]).all()
    assert num_followed > 0
    transport.close()


@pytest.mark.parametrize("kind", ["executor", "lane"])
def test_mutated_header_is_refused_or_whole(kind: str):
    boot_id = bytes(range(16))
    for rng in rounds():
        if kind == "executor":
            region = create_executor_region(RegionShape(MAX_REQUESTS, K, 4), boot_id)
            words = region.words
        else:
            lane = create_lane_region(boot_id, 1, 2)
            words = open_lane_region(lane.fd, boot_id, 1, 2).words
        before = words[:19].copy()
        words[rng.randrange(19)] ^= value(rng) or 1
        fd = region.fd if kind == "executor" else lane.fd
        try:
            if kind == "executor":
                open_executor_region(fd, MAX_REQUESTS, K, boot_id)
            else:
                open_lane_region(fd, boot_id, 1, 2)
        except RegionError:
            continue
        # Words that no field of this kind uses, and nothing else, may be anything.
        used = slice(19) if kind == "executor" else slice(11)
        assert np.array_equal(words[used], before[used]), SEED


def test_descriptors_of_other_kinds_are_refused():
    for fd in (os.memfd_create("plain"), os.eventfd(0), os.open("/dev/zero", os.O_RDWR)):
        owned = OwnedDescriptor(fd)
        with pytest.raises(RegionError):
            open_executor_region(owned, MAX_REQUESTS, K, bytes(16))
