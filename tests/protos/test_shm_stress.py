"""Writer and readers at full speed: no torn read is accepted.

Every word of a publication follows from its number, so a mixture of two shows. The same readers
without the sequence check do find mixtures: were they blind, or never met the writer, the test of
the check would prove nothing. Between them the tests make more than ten million publications.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from specsched_protocol.shm import (
    RegionShape,
    create_executor_region,
    create_lane_region,
    open_executor_region,
    open_lane_region,
)

from tests.protos import stress_kernels as kernels

pytestmark = pytest.mark.slow

BOOT_ID = bytes(16)
SHAPE = RegionShape(max_requests=8, max_draft_tokens=4, num_report_slots=4)
NUM_LANE_PUBLICATIONS = 6_000_000
NUM_STEP_PUBLICATIONS = 3_000_000
NUM_REPORT_PUBLICATIONS = 2_000_000
MIN_ACCEPTED = 1000
MAX_ROUNDS = 20
"""A busy machine may run reader and writer one after the other: then another round."""


@dataclass
class Tally:
    """What one reader saw. accepted: reads it took for whole; torn: those that were not."""

    accepted: int = 0
    torn: int = 0
    retried: int = 0

    def add(self, counts: np.ndarray) -> None:
        self.accepted += int(counts[kernels.ACCEPTED])
        self.torn += int(counts[kernels.TORN_ACCEPTED])
        self.retried += int(counts[kernels.RETRIED])


@dataclass
class Duel:
    """One writer against one checked and one unchecked reader, all without the GIL."""

    write: Callable[[np.ndarray], None]
    read: Callable[[np.ndarray, np.ndarray, bool], None]
    checked: Tally = field(default_factory=Tally)
    unchecked: Tally = field(default_factory=Tally)

    def run(self) -> None:
        stop = np.zeros(1, dtype=np.int64)
        counts = [np.zeros(3, dtype=np.int64) for _ in range(2)]
        readers = [
            threading.Thread(target=self.read, args=(stop, mine, is_checked))
            for mine, is_checked in zip(counts, (True, False), strict=True)
        ]
        for reader in readers:
            reader.start()
        self.write(stop)
        for reader in readers:
            reader.join()
        self.checked.add(counts[0])
        self.unchecked.add(counts[1])

    def run_until_both_met_the_writer(self) -> None:
        for _ in range(MAX_ROUNDS):
            self.run()
            is_enough = self.checked.accepted > MIN_ACCEPTED
            if self.unchecked.torn and self.checked.retried and is_enough:
                return


def assert_only_the_check_protects(duel: Duel) -> None:
    assert duel.checked.torn == 0
    assert duel.checked.accepted > MIN_ACCEPTED
    assert duel.checked.retried > 0, "the checked reader never met the writer"
    assert duel.unchecked.torn > 0, "the harness cannot find a torn read"


def test_decisions():
    created = create_lane_region(BOOT_ID, 0, 1)
    writable = open_lane_region(created.fd, BOOT_ID, 0, 1).words
    duel = Duel(
        write=lambda stop: kernels.write_decisions(writable, NUM_LANE_PUBLICATIONS, stop),
        read=lambda stop, counts, check: kernels.read_decisions(created.words, check, stop, counts),
    )
    duel.run_until_both_met_the_writer()
    assert_only_the_check_protects(duel)


def test_requests_with_their_confidences():
    created = create_executor_region(SHAPE, BOOT_ID)
    received = open_executor_region(created.fd, 8, 4, BOOT_ID)
    duel = Duel(
        write=lambda stop: kernels.write_steps(
            created.words, created.layout, NUM_STEP_PUBLICATIONS, stop
        ),
        read=lambda stop, counts, check: kernels.read_steps(
            received.words, received.layout, check, stop, counts
        ),
    )
    duel.run_until_both_met_the_writer()
    assert_only_the_check_protects(duel)


def test_reports():
    created = create_executor_region(SHAPE, BOOT_ID)
    received = open_executor_region(created.fd, 8, 4, BOOT_ID)
    duel = Duel(
        write=lambda stop: kernels.write_reports(
            created.words, created.layout, NUM_REPORT_PUBLICATIONS, stop
        ),
        read=lambda stop, counts, check: kernels.read_reports(
            received.words, received.layout, check, stop, counts
        ),
    )
    duel.run_until_both_met_the_writer()
    assert_only_the_check_protects(duel)


def test_decisions_between_processes():
    """The scheduler's process writes its lane, mapped from the descriptor; this one reads."""
    lane = create_lane_region(BOOT_ID, 0, 1)
    checked, unchecked = Tally(), Tally()
    for _ in range(MAX_ROUNDS):
        fd = lane.fd.fileno()
        command = [sys.executable, "-m", "tests.protos.stress_kernels", str(fd), "1000000"]
        with subprocess.Popen(command, pass_fds=(fd,)) as writer:
            stop, counts = np.zeros(1, dtype=np.int64), np.zeros((2, 3), dtype=np.int64)
            readers = [
                threading.Thread(
                    target=kernels.read_decisions, args=(lane.words, check, stop, counts[i])
                )
                for i, check in enumerate((True, False))
            ]
            for reader in readers:
                reader.start()
            assert writer.wait(timeout=120) == 0
            stop[0] = 1
            for reader in readers:
                reader.join()
        checked.add(counts[0])
        unchecked.add(counts[1])
        if unchecked.torn and checked.retried:
            break
    assert checked.torn == 0
    assert checked.retried > 0
    assert unchecked.torn > 0
