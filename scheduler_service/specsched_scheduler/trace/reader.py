"""Reading traces back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.json_format import Parse, ParseError
from specsched_protocol.hindsight import StepOutcome
from specsched_protocol.plan import NO_BUDGET_CAP
from specsched_protocol.v1 import plan_pb2

from specsched_scheduler.decision.inputs import DecisionInputs
from specsched_scheduler.learning.errors import TraceError

from .row_checks import check_draft_tokens, check_row
from .schema import METADATA_PREFIX, SCHEMA

__all__ = [
    "OpenTraceFile",
    "RecordedStep",
    "TraceFile",
    "open_trace_files",
    "read_trace_files",
]


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file: what it says of itself, and its steps in order. cost: the profile."""

    path: Path
    policy: str
    max_draft_tokens: int
    cost: plan_pb2.CostModel
    steps: tuple[RecordedStep, ...]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step as it was seen and decided, and what became of it.

    source_step_id: the step at whose end the drafts were made that the confidences belong to.
    request: int64 [R], one number for slot and generation. outcome: None where it was not reported
    or no request of it could be told apart; outcome_request: its requests, int64 [N].
    """

    step_id: int
    source_step_id: int
    request: npt.NDArray[np.int64]
    inputs: DecisionInputs
    budget: int
    max_verify_len: int
    expected_tokens: float
    outcome: StepOutcome | None
    outcome_request: npt.NDArray[np.int64]


_NOBODY = np.zeros(0, dtype=np.int64)


def read_trace_files(path: Path) -> Iterator[TraceFile]:
    """The files of a folder by name, or the one file. Raises TraceError naming what is wrong."""
    for file in open_trace_files(path):
        yield _read(file)


@dataclass(frozen=True, slots=True)
class OpenTraceFile:
    """A file whose columns are those of a trace. facts: what it says of itself."""

    path: Path
    parquet: pq.ParquetFile
    facts: Mapping[str, str]


def open_trace_files(path: Path) -> Iterator[OpenTraceFile]:
    """The same without their steps; closed when the next one is asked for."""
    if not path.exists():
        raise TraceError(f"{path}: No such file or directory")
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise TraceError(f"{path}: {_why_no_file(path)}")
    for file in files:
        try:
            with pq.ParquetFile(file) as parquet:
                yield OpenTraceFile(file, parquet, _facts(file, parquet.schema_arrow))
        except (OSError, pa.ArrowInvalid) as error:
            raise TraceError(f"{file}: {error}") from error


def _why_no_file(directory: Path) -> str:
    if not any(directory.glob("*.part")):
        return "no .parquet file is there"
    return (
        "only unfinished files (.part) are there. Wait some seconds: a scheduler that runs ends its"
        " file soon after the first step. What one that was killed left behind cannot be read;"
        " record anew"
    )


def _facts(path: Path, schema: pa.Schema) -> dict[str, str]:
    missing = set(SCHEMA.names) - set(schema.names)
    if missing:
        raise TraceError(f"{path}: not a trace, without {', '.join(sorted(missing))}")
    raw = schema.metadata or {}
    return {
        key.decode().removeprefix(METADATA_PREFIX): value.decode() for key, value in raw.items()
    }


def _read(file: OpenTraceFile) -> TraceFile:
    path, facts = file.path, file.facts
    try:
        k = check_draft_tokens(int(facts["max_draft_tokens"]))
        cost = Parse(facts["cost"], plan_pb2.CostModel())
        steps = tuple(_step(row, k) for row in file.parquet.read().to_pylist())
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    except (KeyError, ValueError, ParseError) as error:
        raise TraceError(f"{path}: {error!r}") from error
    return TraceFile(path, facts.get("policy", "unknown"), k, cost, steps)


def _step(row: dict[str, Any], k: int) -> RecordedStep:
    check_row(row, k)
    confidence = np.array(
        [[np.nan if v is None else v for v in values] for values in row["confidence"]],
        dtype=np.float64,
    ).reshape(len(row["slot_id"]), k)
    inputs = DecisionInputs(
        confidence=confidence,
        num_draft_tokens=np.array(row["num_draft_tokens"], dtype=np.int64),
        has_confidence=np.array(row["num_confidences"], dtype=np.int64) > 0,
        samples=np.array(row["samples"], dtype=np.bool_),
        weight=np.array(row["weight"], dtype=np.float64),
        context_tokens=np.array(row["context_tokens"], dtype=np.int64),
        num_other_tokens=row["num_other_tokens"],
        num_prefill_tokens=row["num_prefill_tokens"],
        max_budget=_cap(row["max_budget"]),
        next_draft_tokens=row["next_draft_tokens"],
    )
    request = _requests(row["slot_id"], row["generation"])
    outcome, outcome_request = _outcome(row, inputs, request)
    return RecordedStep(
        step_id=row["step_id"],
        source_step_id=row["source_step_id"],
        request=request,
        inputs=inputs,
        budget=row["budget"],
        max_verify_len=_cap(row["max_verify_len"]),
        expected_tokens=row["expected_tokens"],
        outcome=outcome,
        outcome_request=outcome_request,
    )


def _outcome(
    row: dict[str, Any], inputs: DecisionInputs, request: npt.NDArray[np.int64]
) -> tuple[StepOutcome | None, npt.NDArray[np.int64]]:
    """(outcome, its requests), of the requests that were asked for a decision."""
    if row["num_tokens"] is None:
        return None, _NOBODY
    reported = _requests(row["outcome_slot_id"], row["outcome_generation"])
    num_verified = np.array(row["num_verified"], dtype=np.int64)
    num_accepted = np.array(row["num_accepted"], dtype=np.int64)
    known, ours, theirs = np.intersect1d(reported, request, return_indices=True)
    if not len(known):
        return None, _NOBODY
    outcome = StepOutcome(
        num_drafts=np.maximum(num_verified[ours], inputs.num_draft_tokens[theirs]),
        num_verified=num_verified[ours],
        num_accepted=num_accepted[ours],
        confidence=np.asarray(inputs.confidence, dtype=np.float64)[theirs],
        weight=np.asarray(inputs.weight, dtype=np.float64)[theirs],
        num_other_tokens=row["num_tokens"] - int(num_verified.sum()),
        measured_ms=max(row["draft_ms"] + row["verify_ms"], 1e-6),
    )
    return outcome, known


def _requests(slots: list[int], generations: list[int]) -> npt.NDArray[np.int64]:
    """Slot and generation as one number; the 31 lower bits of a generation tell enough apart."""
    generation = np.array(generations, dtype=np.int64) & (2**31 - 1)
    return generation << 32 | np.array(slots, dtype=np.int64)


def _cap(value: int | None) -> int:
    return NO_BUDGET_CAP if value is None else value
