"""The committed recording of drafts, and steps of many requests replayed from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.learning.calibration.observations import Observations

from tests.repository import ROOT

PATH = ROOT / "tests" / "fixtures" / "drafts.npz"
K = 7
DOMAINS = {"math": 0, "code": 1, "chat": 2}


@dataclass(frozen=True)
class Drafts:
    observations: Observations
    domain: npt.NDArray[np.int64]


@cache
def drafts(of_class: int) -> Drafts:
    """The rows of one sampling class."""
    with np.load(PATH) as archive:
        rows = (archive["temperature"] == 0) == (of_class == GREEDY)
        logit = archive["conf_logit"][rows].astype(np.float64)
        accepted = archive["accepted"][rows].astype(np.int64)
        group = archive["request"][rows].astype(np.int64)
        domain = archive["domain"][rows].astype(np.int64)
    assert of_class in (GREEDY, SAMPLED)
    return Drafts(Observations(logit, np.full(len(logit), K), accepted, group), domain)


@dataclass
class _Live:
    row: int
    end: int
    serial: int


def replay(
    recorded: Drafts, schedule: list[tuple[int, int]], num_requests: int, seed: int
) -> Iterator[Observations]:
    """Steps of `num_requests` requests at a time; schedule: (number of steps, domain).

    A request runs to its recorded end, then another of the domain takes its place. With a new
    domain all are replaced at once, each somewhere in its middle: the hardest kind of change.
    """
    rng = np.random.default_rng(seed)
    group = recorded.observations.group
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    ends = np.append(starts[1:], len(group))
    serial = 0
    for num_steps, domain in schedule:
        spans = [(b, e) for b, e in zip(starts, ends, strict=True) if recorded.domain[b] == domain]
        live: list[_Live] = []
        for _ in range(num_requests):
            begin, end = spans[rng.integers(len(spans))]
            live.append(_Live(int(rng.integers(begin, end)), int(end), serial))
            serial += 1
        for _ in range(num_steps):
            rows = np.array([each.row for each in live])
            part = recorded.observations.rows(rows)
            serials = np.array([each.serial for each in live])
            yield Observations(part.logit, part.num_verified, part.num_accepted, serials)
            for each in live:
                each.row += 1
                if each.row == each.end:
                    begin, end = spans[rng.integers(len(spans))]
                    each.row, each.end, each.serial = int(begin), int(end), serial
                    serial += 1
