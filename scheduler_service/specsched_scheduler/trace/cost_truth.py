"""How true the cost model was: what steps were predicted to take, and what they took.

Three predictions of every step are held against its measured time: `profile`, the table that was
profiled at start; `context`, the same with the profiled cost of context; and `learned`, what the
scheduler promised with the decision, corrected by what it had learned until then. The first two are
of the rows that ran. The promise is of the budget, so that it counts only where the budget ran; it
leaves a prefill chunk out, so that steps with one are left out altogether, whether the plan request
told of it or the prompt came later: then more rows ran than those of anchors and verified drafts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.json_format import Parse
from specsched_protocol.v1 import plan_pb2

from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.reference import draft_ms, verify_ms
from specsched_scheduler.decision.wire import cost_model_from_message
from specsched_scheduler.learning.errors import TraceError

from .reader import OpenTraceFile, open_trace_files

__all__ = ["cost_truth"]

PREDICTIONS: Final = ("profile", "context", "learned")
_COLUMNS: Final = (
    *("num_other_tokens", "num_prefill_tokens", "samples", "context_tokens", "budget"),
    *("expected_tokens", "expected_ms", "num_tokens", "padded_num_tokens", "asked_draft_tokens"),
    *("draft_ms", "verify_ms", "num_verified", "num_accepted"),
)
_BATCH_STEPS: Final = 4096
_TOKEN_BLOCK: Final = 1000
"""Steps over which expected and actual tokens are compared."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Steps:
    """Columns, a value for each step. predicted: by PREDICTIONS, float64 [3, n], NaN where none."""

    size: Floats
    requests: Floats
    context: Floats
    measured: Floats
    predicted: Floats
    expected_tokens: Floats
    tokens: Floats

    @classmethod
    def joined(cls, parts: list[_Steps]) -> _Steps:
        names = cls.__dataclass_fields__
        return cls(**{n: np.concatenate([getattr(p, n) for p in parts], axis=-1) for n in names})


def cost_truth(path: Path) -> dict[str, Any]:
    """Error of each prediction over all steps, by size, by requests and by context per request.

    Errors are shares of the measured time: `bias` that of the sums, positive where too much was
    predicted, `error` the mean of the absolute ones. By size there are the captured sizes, by
    requests and context powers of two, up to the number named. `tokens`: the share by which
    expected tokens were off in each thousand steps. Raises TraceError.
    """
    parts = [part for file in open_trace_files(path) for part in _read(file)]
    if not parts or not sum(len(part.size) for part in parts):
        raise TraceError(f"{path}: no step without prefill has an outcome")
    steps = _Steps.joined(parts)
    groups = {
        "size": steps.size,
        "requests": _power_of_two(steps.requests),
        "context": _power_of_two(steps.context),
    }
    return {
        "num_steps": len(steps.size),
        "all": _errors(steps, np.ones(len(steps.size), dtype=np.bool_)),
        **{
            f"by_{name}": {
                int(value): _errors(steps, values == value) for value in np.unique(values)
            }
            for name, values in groups.items()
        },
        "tokens": _token_errors(steps),
    }


def _errors(steps: _Steps, chosen: npt.NDArray[np.bool_]) -> dict[str, Any]:
    measured = steps.measured[chosen]
    found: dict[str, Any] = {
        "num_steps": int(chosen.sum()),
        "measured_ms": float(measured.mean()),
    }
    for name, predicted in zip(PREDICTIONS, steps.predicted[:, chosen], strict=True):
        known = np.isfinite(predicted)
        if known.any():
            off = predicted[known] - measured[known]
            found[name] = {
                "num_steps": int(known.sum()),
                "bias": float(off.sum() / measured[known].sum()),
                "error": float((np.abs(off) / measured[known]).mean()),
            }
    return found


def _token_errors(steps: _Steps) -> dict[str, Any]:
    known = np.isfinite(steps.expected_tokens)
    expected, tokens = steps.expected_tokens[known], steps.tokens[known]
    starts = range(0, len(tokens) - _TOKEN_BLOCK + 1, _TOKEN_BLOCK)
    blocks = [
        float(expected[s : s + _TOKEN_BLOCK].sum() / tokens[s : s + _TOKEN_BLOCK].sum() - 1)
        for s in starts
    ]
    bias = float(expected.sum() / tokens.sum() - 1) if len(tokens) else None
    worst = max(blocks, key=abs, default=None)
    return {"num_steps": len(tokens), "bias": bias, "worst_block": worst, "blocks": blocks}


def _power_of_two(values: Floats) -> Floats:
    return np.exp2(np.ceil(np.log2(np.maximum(values, 1.0))))


def _read(file: OpenTraceFile) -> Iterator[_Steps]:
    try:
        cost = Parse(file.facts["cost"], plan_pb2.CostModel())
        table = cost_model_from_message(cost, int(file.facts["max_draft_tokens"])).compile()
    except (KeyError, ValueError) as error:
        raise TraceError(f"{file.path}: {error!r}") from error
    if not table.has_model:
        return
    for batch in file.parquet.iter_batches(_BATCH_STEPS, columns=list(_COLUMNS)):
        yield _steps(batch, table)


def _steps(batch: pa.RecordBatch, table: CostTable) -> _Steps:
    rows = [row for row in batch.to_pylist() if _counts(row)]
    values = [_values(row, table) for row in rows]
    columns = np.array(values, dtype=np.float64).reshape(len(rows), 9).T
    size, requests, context, measured, *predicted, expected_tokens, tokens = columns
    return _Steps(size, requests, context, measured, np.stack(predicted), expected_tokens, tokens)


def _counts(row: Mapping[str, Any]) -> bool:
    if row["num_tokens"] is None or row["num_prefill_tokens"] or not any(row["samples"]):
        return False
    # A prompt that came after the plan request is in no column but the rows that ran.
    return bool(row["num_tokens"] == len(row["num_verified"]) + sum(row["num_verified"]))


def _values(row: Mapping[str, Any], table: CostTable) -> tuple[float, ...]:
    """size, requests, context, measured, three predictions, expected and actual tokens."""
    num_requests = sum(row["samples"])
    context = sum(itertools.compress(row["context_tokens"], row["samples"]))
    ran = np.array([row["num_tokens"]])
    profile = float(verify_ms(table, ran)[0])
    profile += draft_ms(table, num_requests, row["asked_draft_tokens"])
    extra = table.context_ms_per_token * (context - table.profiled_context * num_requests)
    is_as_planned = row["num_tokens"] == row["num_other_tokens"] + row["budget"]
    is_as_planned &= row["expected_ms"] > 0
    return (
        row["padded_num_tokens"],
        num_requests,
        context / num_requests,
        row["draft_ms"] + row["verify_ms"],
        profile,
        max(profile + extra, profile / 10),
        row["expected_ms"] if is_as_planned else np.nan,
        row["expected_tokens"] if is_as_planned else np.nan,
        len(row["num_accepted"]) + sum(row["num_accepted"]),
    )
