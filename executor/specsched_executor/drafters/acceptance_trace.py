"""Recorded drafts: what a real drafter was confident of, and what a real target accepted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from specsched_protocol.npz import read_arrays

__all__ = ["AcceptanceTrace", "RecordedRequests", "read_acceptance_trace"]

_NUM_POSITIONS: Final = 1024
_REACH: Final = 8
"""Steps to either side that count as around: easy and hard places stay what they are."""
_REQUIRED: Final = ("conf_logit", "accepted", "request")


@dataclass(frozen=True, slots=True)
class RecordedRequests:
    """row_at: int64 [m, positions], by request and output position one of the steps of the trace
    around there, by chance. A shorter answer begins again.

    Not the next step from there: whoever verifies less than was recorded would meet the steps that
    brought little again and again.
    """

    row_at: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AcceptanceTrace:
    """n recorded drafts of k tokens, each verified whole.

    confidence: float32 [n, k]. num_accepted: int32 [n]. greedy, sampled: the requests that were
    decoded so; one and the same where the recording does not tell them apart.
    """

    confidence: npt.NDArray[np.float32]
    num_accepted: npt.NDArray[np.int32]
    greedy: RecordedRequests
    sampled: RecordedRequests


def read_acceptance_trace(path: Path, max_draft_tokens: int) -> AcceptanceTrace:
    """Read an .npz of `conf_logit` [n, k], `accepted` [n], `request` [n] and, if it tells, the
    `temperature` [n]; the steps of a request follow each other.

    Raises ValueError, naming the file, for anything else and for drafts shorter than
    max_draft_tokens.
    """
    arrays = _load(path)
    logits, accepted = arrays["conf_logit"].astype(np.float32), arrays["accepted"]
    n, k = logits.shape if logits.ndim == 2 else (-1, 0)
    if n < 1 or any(arrays[name].shape != (n,) for name in arrays if name != "conf_logit"):
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f"{path}: shapes {shapes}; accepted: conf_logit [n, k], all others [n]")
    if k < max_draft_tokens:
        raise ValueError(f"{path}: drafts of {k}; accepted: {max_draft_tokens}, max_draft_tokens")
    if accepted.min() < 0 or accepted.max() > k or not np.isfinite(logits).all():
        raise ValueError(f"{path}: accepted is not within 0 to {k}, or a logit is not finite")
    is_greedy = arrays.get("temperature", np.ones(n)) == 0
    greedy, sampled = (
        _by_position(_chosen_or_all(chosen), arrays["request"], accepted)
        for chosen in (is_greedy, ~is_greedy)
    )
    confidence = (1 / (1 + np.exp(-logits))).astype(np.float32)
    return AcceptanceTrace(confidence, accepted.astype(np.int32), greedy, sampled)


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        arrays = read_arrays(path, (*_REQUIRED, "temperature"))
    except ValueError as error:
        raise ValueError(f"{path} {error}") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    if missing := [name for name in _REQUIRED if name not in arrays]:
        raise ValueError(f"{path}: {', '.join(missing)} is missing")
    return arrays


def _chosen_or_all(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    rows = np.flatnonzero(chosen)
    return rows if len(rows) else np.arange(len(chosen))


def _by_position(
    rows: npt.NDArray[np.int64], request: npt.NDArray[Any], accepted: npt.NDArray[Any]
) -> RecordedRequests:
    requests = request[rows]
    starts = np.flatnonzero(np.append(True, requests[1:] != requests[:-1]))
    row_at = np.empty((len(starts), _NUM_POSITIONS), dtype=np.int64)
    rng, positions = np.random.default_rng(0), np.arange(_NUM_POSITIONS)
    for out, steps in zip(row_at, np.split(rows, starts[1:]), strict=True):
        # A step brings its accepted drafts and the bonus token.
        ends = np.cumsum(accepted[steps].astype(np.int64) + 1)
        there = np.searchsorted(ends, positions % ends[-1], side="right")
        around = rng.integers(-_REACH, _REACH + 1, _NUM_POSITIONS)
        out[:] = steps[(there + around) % len(steps)]
    return RecordedRequests(row_at)
