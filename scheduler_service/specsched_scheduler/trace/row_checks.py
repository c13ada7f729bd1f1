"""What a row of a trace may hold, checked before anything is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specsched_protocol.plan import NO_BUDGET_CAP
from specsched_protocol.shm.layout import MAX_DRAFT_TOKENS, MAX_REQUESTS

from specsched_scheduler.learning.errors import TraceError

__all__ = ["check_draft_tokens", "check_row"]

MAX_STEP_TOKENS = MAX_REQUESTS * (MAX_DRAFT_TOKENS + 1)
"""What a shared-memory region has room for; pricing a step allocates by its tokens."""
_MAX_UINT32 = (1 << 32) - 1
_MAX_INT64 = (1 << 63) - 1
_MAX_MS = 1e9


@dataclass(frozen=True, slots=True)
class _Range:
    """Whole or broken numbers from low to high, both included."""

    low: float
    high: float
    is_whole: bool = True
    or_null: bool = False

    def admits(self, value: object) -> bool:
        if value is None:
            return self.or_null
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | float):
            return False
        return self.low <= value <= self.high

    def __str__(self) -> str:
        kind = "" if self.is_whole else "a number in "
        return f"{kind}{self.low:.15g}..{self.high:.15g}{' or null' if self.or_null else ''}"


_TOKENS = _Range(0, MAX_STEP_TOKENS)
_CAP = _Range(0, NO_BUDGET_CAP, or_null=True)
_UINT32 = _Range(0, _MAX_UINT32)
_SLOT = _Range(0, MAX_REQUESTS - 1)
_STEP_ID = _Range(-1, _MAX_INT64)
_MS = _Range(0.0, _MAX_MS, is_whole=False)
_FLOAT32_MAX = 3.5e38

_COLUMNS = {
    "step_id": _STEP_ID,
    "source_step_id": _STEP_ID,
    "num_other_tokens": _TOKENS,
    "num_prefill_tokens": _TOKENS,
    "max_budget": _CAP,
    "budget": _TOKENS,
    "max_verify_len": _CAP,
    "next_draft_tokens": _Range(0, NO_BUDGET_CAP),
    "expected_tokens": _Range(0.0, MAX_STEP_TOKENS, is_whole=False),
}
_OUTCOME_COLUMNS = {
    "num_tokens": _TOKENS,
    "padded_num_tokens": _TOKENS,
    "draft_ms": _MS,
    "verify_ms": _MS,
}


def check_draft_tokens(k: int) -> int:
    """The same; raises ValueError for a draft length that no executor has."""
    if not 1 <= k <= MAX_DRAFT_TOKENS:
        raise ValueError(f"max_draft_tokens is {k}, accepted: 1..{MAX_DRAFT_TOKENS}")
    return k


def check_row(row: Mapping[str, Any], k: int) -> None:
    """Raises TraceError naming step, column and value, and what is accepted."""
    drafts = _Range(0, k)
    _check_values(row, _COLUMNS)
    requests = {
        "slot_id": _SLOT,
        "generation": _UINT32,
        "num_draft_tokens": drafts,
        "weight": _Range(0.0, _FLOAT32_MAX, is_whole=False),
        "context_tokens": _UINT32,
        "num_confidences": drafts,
    }
    num_requests = _length(row, "slot_id")
    _check_lists(row, requests, num_requests)
    _check_flags(row, "samples", num_requests)
    _check_length(row, "confidence", num_requests)
    for place, values in enumerate(row["confidence"]):
        _check_confidences(row, place, values, k)
    if row["num_prefill_tokens"] > row["num_other_tokens"]:
        limit = f"up to num_other_tokens = {row['num_other_tokens']}"
        raise _refusal(row, "num_prefill_tokens", row["num_prefill_tokens"], limit)
    if row["num_tokens"] is not None:
        _check_outcome(row, drafts)


def _check_outcome(row: Mapping[str, Any], drafts: _Range) -> None:
    _check_values(row, _OUTCOME_COLUMNS)
    reported = {
        "outcome_slot_id": _SLOT,
        "outcome_generation": _UINT32,
        "num_verified": drafts,
        "num_accepted": drafts,
    }
    _check_lists(row, reported, _length(row, "outcome_slot_id"))
    for place, most in enumerate(row["num_verified"]):
        if row["num_accepted"][place] > most:
            name, value = f"num_accepted[{place}]", row["num_accepted"][place]
            raise _refusal(row, name, value, f"up to num_verified = {most}")
    num_verified = sum(row["num_verified"])
    if row["num_tokens"] < num_verified:
        limit = f"at least the sum of num_verified = {num_verified}"
        raise _refusal(row, "num_tokens", row["num_tokens"], limit)


def _check_values(row: Mapping[str, Any], columns: Mapping[str, _Range]) -> None:
    for name, accepted in columns.items():
        if not accepted.admits(row[name]):
            raise _refusal(row, name, row[name], accepted)


def _check_lists(row: Mapping[str, Any], columns: Mapping[str, _Range], length: int) -> None:
    for name, accepted in columns.items():
        _check_length(row, name, length)
        _check_each(row, name, row[name], accepted.admits, accepted)


def _check_flags(row: Mapping[str, Any], name: str, length: int) -> None:
    _check_length(row, name, length)
    _check_each(row, name, row[name], lambda value: isinstance(value, bool), "true or false")


def _check_confidences(row: Mapping[str, Any], place: int, values: object, k: int) -> None:
    name = f"confidence[{place}]"
    if not isinstance(values, list) or len(values) != k:
        raise _refusal(row, name, values, f"max_draft_tokens = {k} values")
    _check_each(row, name, values, lambda each: each is None or isinstance(each, float), "numbers")


def _check_each(
    row: Mapping[str, Any],
    name: str,
    values: Iterable[object],
    admits: Callable[[object], bool],
    accepted: object,
) -> None:
    for place, value in enumerate(values):
        if not admits(value):
            raise _refusal(row, f"{name}[{place}]", value, accepted)


def _length(row: Mapping[str, Any], name: str) -> int:
    values = row[name]
    if not isinstance(values, list) or len(values) > MAX_REQUESTS:
        raise _refusal(row, name, values, f"a list of up to {MAX_REQUESTS} values")
    return len(values)


def _check_length(row: Mapping[str, Any], name: str, length: int) -> None:
    values = row[name]
    if not isinstance(values, list) or len(values) != length:
        raise _refusal(row, name, values, f"a list of {length} values, as the other columns have")


def _refusal(row: Mapping[str, Any], name: str, value: object, accepted: object) -> TraceError:
    given = f"a list of {len(value)} values" if isinstance(value, list) else repr(value)[:60]
    return TraceError(f"step {row['step_id']!r}: {name} is {given}, accepted: {accepted}")
