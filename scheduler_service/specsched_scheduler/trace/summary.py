"""What is in a trace, without deciding anything anew."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from specsched_protocol.v1 import plan_pb2

from .reader import OpenTraceFile, open_trace_files

__all__ = ["HeadStep", "head_rows", "read_head", "summarize"]

_COLUMNS = (
    "step_id",
    "decided_ns",
    "slot_id",
    "num_draft_tokens",
    "samples",
    "budget",
    "expected_tokens",
    "expected_ms",
    "model_state",
    "plan_us",
    "draft_ms",
    "verify_ms",
    "num_verified",
    "num_accepted",
)
_BATCH_STEPS = 4096


@dataclass(slots=True)
class _Totals:
    """Sums over steps; the lists have a value for each step that has one.

    Of `expected_tokens` and `tokens`, and of `expected_ms` and `measured_ms`, the same steps count:
    those with an outcome.
    """

    num_files: int = 0
    num_bytes: int = 0
    facts: dict[str, set[str]] = field(default_factory=dict)
    first_step_id: int | None = None
    last_step_id: int | None = None
    span_ns: dict[str, tuple[int, int]] = field(default_factory=dict)
    num_steps: int = 0
    num_outcomes: int = 0
    num_without_model: int = 0
    num_requests: int = 0
    num_drafts: int = 0
    budget: int = 0
    num_verified: int = 0
    num_accepted: int = 0
    expected_tokens: float = 0.0
    tokens: int = 0
    plan_us: list[npt.NDArray[np.float64]] = field(default_factory=list)
    expected_ms: list[npt.NDArray[np.float64]] = field(default_factory=list)
    measured_ms: list[npt.NDArray[np.float64]] = field(default_factory=list)


def summarize(path: Path) -> dict[str, Any]:
    """Files, steps, tokens, times and policies of a trace; None where nothing tells.

    Raises TraceError for what is no trace.
    """
    totals = _Totals()
    for file in open_trace_files(path):
        totals.num_files += 1
        totals.num_bytes += file.path.stat().st_size
        for name in ("executor", "model", "policy", "max_draft_tokens"):
            totals.facts.setdefault(name, set()).add(file.facts.get(name, "unknown"))
        for batch in file.parquet.iter_batches(_BATCH_STEPS, columns=list(_COLUMNS)):
            _add(totals, batch, file.facts.get("boot_id", ""))
    return _to_json(totals)


def _add(totals: _Totals, batch: pa.RecordBatch, boot_id: str) -> None:
    steps, decided_ns = batch["step_id"], batch["decided_ns"]
    if not len(steps):
        return
    first, last = pc.min(steps).as_py(), pc.max(steps).as_py()
    known = (totals.first_step_id, totals.last_step_id)
    totals.first_step_id = first if known[0] is None else min(known[0], first)
    totals.last_step_id = last if known[1] is None else max(known[1], last)
    begin, end = pc.min(decided_ns).as_py(), pc.max(decided_ns).as_py()
    # Clocks of different executors may be those of different boots of the machine.
    earlier, later = totals.span_ns.get(boot_id, (begin, end))
    totals.span_ns[boot_id] = (min(earlier, begin), max(later, end))
    totals.num_steps += len(steps)
    no_model = pc.equal(batch["model_state"], plan_pb2.MODEL_STATE_NO_MODEL)
    totals.num_without_model += _sum(no_model)
    totals.num_requests += len(batch["slot_id"].flatten())
    totals.num_drafts += _sum(batch["num_draft_tokens"].flatten())
    totals.budget += _sum(batch["budget"])
    totals.plan_us.append(batch["plan_us"].to_numpy(zero_copy_only=False))
    _add_outcomes(totals, batch.filter(pc.is_valid(batch["verify_ms"])))


def _add_outcomes(totals: _Totals, batch: pa.RecordBatch) -> None:
    accepted = batch["num_accepted"]
    num_accepted = _sum(accepted.flatten())
    totals.num_outcomes += batch.num_rows
    totals.num_verified += _sum(batch["num_verified"].flatten())
    totals.num_accepted += num_accepted
    # Each request that samples gets the bonus token, too.
    totals.tokens += num_accepted + len(accepted.flatten())
    totals.expected_tokens += float(pc.sum(batch["expected_tokens"]).as_py() or 0.0)
    totals.expected_ms.append(batch["expected_ms"].to_numpy(zero_copy_only=False))
    measured = pc.add(batch["draft_ms"], batch["verify_ms"])
    totals.measured_ms.append(measured.to_numpy(zero_copy_only=False))


def _sum(values: pa.Array) -> int:
    return int(pc.sum(values).as_py() or 0)


def _to_json(totals: _Totals) -> dict[str, Any]:
    steps, outcomes = totals.num_steps, totals.num_outcomes
    return {
        "files": totals.num_files,
        "bytes": totals.num_bytes,
        "executors": sorted(totals.facts["executor"]),
        "models": sorted(totals.facts["model"]),
        "policies": sorted(totals.facts["policy"]),
        "max_draft_tokens": sorted(map(_number, totals.facts["max_draft_tokens"])),
        "steps": steps,
        "steps_with_outcome": outcomes,
        "steps_without_model": totals.num_without_model,
        "first_step_id": totals.first_step_id,
        "last_step_id": totals.last_step_id,
        "seconds": sum(end - begin for begin, end in totals.span_ns.values()) / 1e9,
        "requests_per_step": _mean(totals.num_requests, steps),
        "drafts_per_step": _mean(totals.num_drafts, steps),
        "budget_per_step": _mean(totals.budget, steps),
        "verified_tokens": totals.num_verified,
        "accepted_tokens": totals.num_accepted,
        "accepted_share": _mean(totals.num_accepted, totals.num_verified),
        "tokens_per_step": _mean(totals.tokens, outcomes),
        "expected_tokens_per_step": _mean(totals.expected_tokens, outcomes),
        "measured_ms_p50": _quantile(totals.measured_ms, 0.5),
        "expected_ms_p50": _quantile(totals.expected_ms, 0.5),
        "plan_us_p50": _quantile(totals.plan_us, 0.5),
        "plan_us_p99": _quantile(totals.plan_us, 0.99),
    }


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


def _quantile(parts: list[npt.NDArray[np.float64]], share: float) -> float | None:
    values = np.concatenate(parts) if parts else np.zeros(0)
    return float(np.quantile(values, share)) if values.size else None


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text


# ===================== The first steps =====================


@dataclass(frozen=True, slots=True)
class HeadStep:
    """A step in a line. The last four: None where its outcome was not reported."""

    step_id: int
    num_requests: int
    num_drafts: int
    budget: int
    expected_tokens: float
    expected_ms: float
    num_verified: int | None
    num_accepted: int | None
    tokens: int | None
    measured_ms: float | None


def head_rows(path: Path, num: int) -> Iterator[dict[str, Any]]:
    """The first `num` rows as they were recorded, files by name. Raises TraceError."""
    return itertools.islice(_rows(open_trace_files(path), num), num)


def read_head(path: Path, num: int) -> list[HeadStep]:
    """The first `num` steps. Raises TraceError."""
    return [_head_step(row) for row in head_rows(path, num)]


def _rows(files: Iterator[OpenTraceFile], num: int) -> Iterator[dict[str, Any]]:
    for file in files:
        for batch in file.parquet.iter_batches(min(num, _BATCH_STEPS)):
            yield from batch.to_pylist()


def _head_step(row: dict[str, Any]) -> HeadStep:
    has_outcome = row["verify_ms"] is not None
    accepted = sum(row["num_accepted"]) if has_outcome else None
    return HeadStep(
        step_id=row["step_id"],
        num_requests=len(row["slot_id"]),
        num_drafts=sum(row["num_draft_tokens"]),
        budget=row["budget"],
        expected_tokens=row["expected_tokens"],
        expected_ms=row["expected_ms"],
        num_verified=sum(row["num_verified"]) if has_outcome else None,
        num_accepted=accepted,
        tokens=None if accepted is None else accepted + len(row["num_accepted"]),
        measured_ms=row["draft_ms"] + row["verify_ms"] if has_outcome else None,
    )
