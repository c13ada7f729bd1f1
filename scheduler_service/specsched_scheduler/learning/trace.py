"""Recorded confidences and outcomes in a .npz file.

| array | shape | meaning |
|---|---|---|
| `conf` | float [n, k] | confidence of each drafted token, position 0 first; NaN: no draft there |
| `conf_logit` | float [n, k] | its logit; used where there is no `conf` |
| `accepted` | int [n] | drafts accepted |
| `num_verified` | int [n], optional | drafts verified; default: all that have a confidence |
| `request` | int [n], optional | equal for steps of one request; default: each its own |
| `temperature` | float [n], optional | of the request; 0 is greedy; default: all sampled |

One row is one step of one request. Other arrays are ignored.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from specsched_protocol.npz import read_arrays
from specsched_protocol.shm.layout import MAX_DRAFT_TOKENS

from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.learning.calibration.observations import Observations, to_logit
from specsched_scheduler.learning.errors import TraceError

__all__ = ["read_trace"]

_ARRAYS = ("conf", "conf_logit", "accepted", "num_verified", "request", "temperature")
Arrays = dict[str, npt.NDArray[np.generic]]


def read_trace(path: Path, *, is_greedy: bool | None = None) -> dict[int, Observations]:
    """The observations of each sampling class that the trace has rows of.

    is_greedy: the class of all rows, for a trace without temperatures. Raises TraceError naming
    what is wrong with the file, OSError where it cannot be read.
    """
    arrays = _load(path)
    logit = _logits(arrays)
    num_rows = len(logit)
    num_accepted = _column(arrays, "accepted", num_rows)
    present = np.isfinite(logit).sum(axis=1).astype(np.int64)
    num_verified = _column(arrays, "num_verified", num_rows, present)
    group = _column(arrays, "request", num_rows, np.arange(num_rows))
    for name, values, limit in (
        ("num_verified", num_verified, np.full(num_rows, logit.shape[1])),
        ("accepted", num_accepted, num_verified),
    ):
        wrong = np.flatnonzero((values < 0) | (values > limit))
        if len(wrong):
            row = int(wrong[0])
            raise TraceError(
                f"{name}[{row}] is {values[row]}, accepted are 0 to {limit[row]}"
                f" ({'k' if name == 'num_verified' else 'num_verified of the row'})"
            )
    whole = Observations(logit, num_verified, num_accepted, group)
    greedy = _greedy_rows(arrays, num_rows, is_greedy)
    parts = {GREEDY: whole.rows(greedy), SAMPLED: whole.rows(~greedy)}
    return {of_class: part for of_class, part in parts.items() if len(part)}


def _load(path: Path) -> Arrays:
    try:
        return read_arrays(path, _ARRAYS)
    except ValueError as error:
        raise TraceError(str(error)) from error


def _logits(arrays: Arrays) -> npt.NDArray[np.float64]:
    name = "conf" if "conf" in arrays else "conf_logit"
    values = arrays.get(name)
    if values is None:
        raise TraceError("has neither conf nor conf_logit, one is needed")
    if values.ndim != 2 or not np.issubdtype(values.dtype, np.floating):
        raise TraceError(f"{name} is {values.dtype} {values.shape}, expected floats [n, k]")
    if len(values) == 0 or not 1 <= values.shape[1] <= MAX_DRAFT_TOKENS:
        raise TraceError(
            f"{name} has shape {values.shape}, expected n > 0, k in 1..{MAX_DRAFT_TOKENS}"
        )
    numbers = values.astype(np.float64)
    if name == "conf_logit":
        return np.clip(numbers, -12.0, 12.0)
    wrong = np.argwhere((numbers < 0) | (numbers > 1))
    if len(wrong):
        row, position = wrong[0].tolist()
        value = numbers[row, position]
        raise TraceError(f"conf[{row}, {position}] is {value}, accepted are 0 to 1, or NaN")
    return to_logit(numbers)


def _column(
    arrays: Arrays, name: str, num_rows: int, default: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int64]:
    values = arrays.get(name)
    if values is None:
        if default is None:
            raise TraceError(f"has no {name}")
        return default
    if values.shape != (num_rows,) or not np.issubdtype(values.dtype, np.integer):
        raise TraceError(f"{name} is {values.dtype} {values.shape}, expected integers [{num_rows}]")
    return values.astype(np.int64)


def _greedy_rows(arrays: Arrays, num_rows: int, is_greedy: bool | None) -> npt.NDArray[np.bool_]:
    temperature = arrays.get("temperature")
    if is_greedy is not None:
        if temperature is not None:
            raise TraceError("has temperatures, so the sampling class cannot be given")
        return np.full(num_rows, is_greedy)
    if temperature is None:
        return np.zeros(num_rows, dtype=np.bool_)
    if temperature.shape != (num_rows,):
        raise TraceError(f"temperature has shape {temperature.shape}, expected ({num_rows},)")
    return np.asarray(temperature == 0)
