"""What the page draws: a snapshot, with verdicts. Plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from specsched_scheduler.telemetry.decisions import NUM_SECONDS
from specsched_scheduler.telemetry.snapshot import Snapshot, as_json

from .frame import Payload
from .verdict import Phase, Verdict, nobody_attached, process_verdict, verdict

__all__ = ["payload"]


def payload(snapshot: Snapshot, phase: Phase, promotable: Iterable[str]) -> Payload:
    """`as_json` of the snapshot, and besides:

    phase: of the process. num_seconds: how many of them are kept. promotable: schedulers that
    a POST would promote. verdict: of the process; None where each executor has its own.
    """
    overall = process_verdict(phase)
    if overall is None and not snapshot.executors:
        overall = nobody_attached()
    plain = as_json(snapshot)
    for shown, executor in zip(plain["executors"], snapshot.executors, strict=True):
        shown["verdict"] = _plain(verdict(snapshot, executor))
    return plain | {
        "phase": phase,
        "num_seconds": NUM_SECONDS,
        "promotable": sorted(promotable),
        "verdict": None if overall is None else _plain(overall),
    }


def _plain(it: Verdict) -> dict[str, Any]:
    return asdict(it) | {"cautions": list(it.cautions)}
