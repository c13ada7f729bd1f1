"""What a confidence is worth: learned per draft position and sampling class.

    calibrated = sigmoid(logit(confidence) / temperature + intercept)

Decisions read it from a table, so that the compiled and the plain form agree bit for bit (their
exponentials need not) and no exponential is computed in a step. Of the distance to the nearer of 0
and 1, as a float32, the leading bits are the place in the table: 16 knots for each factor of two,
dense where the curve bends. Between knots it is linear, nearer than 2^-14 to an end it is flat.
0, 1 and values that are no probability pass through; the decision repairs the latter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit
from specsched_protocol.shm.atomics import float32_to_bits

__all__ = [
    "GREEDY",
    "NUM_CLASSES",
    "SAMPLED",
    "CalibrationTable",
    "calibrate",
    "calibrate_rows",
    "compile_calibration",
    "identity_table",
]

GREEDY = 0
"""Requests of temperature 0."""
SAMPLED = 1
"""All others."""
NUM_CLASSES = 2

_NUM_OCTAVES = 13
_DROPPED_BITS = 19
"""Of the 23 bits of a float32's fraction: 4 are left."""
_HALF = _NUM_OCTAVES << (23 - _DROPPED_BITS)
"""Cells on each side of one half."""
_NUM_KNOTS = 2 * _HALF + 1
_FIRST_BITS = (127 - 1 - _NUM_OCTAVES) << 23
"""Of 2^-14, the least distance that is told apart, as a float32."""
_SHARE_MASK = (1 << _DROPPED_BITS) - 1
_SHARE_UNIT = 1.0 / (1 << _DROPPED_BITS)

Floats = npt.NDArray[np.float64]


class CalibrationTable(NamedTuple):
    """A calibration as flat arrays, fit for compiled code.

    values: float64 [NUM_CLASSES, k, knots], rising. is_active: uint8 [NUM_CLASSES, k], 0 where the
    confidence stays as it is. is_identity: 1 where no entry is active.
    """

    values: Floats
    is_active: npt.NDArray[np.uint8]
    is_identity: int


def _knots() -> Floats:
    bits = _FIRST_BITS + (np.arange(_HALF + 1) << _DROPPED_BITS)
    lower = bits.astype(np.int32).view(np.float32).astype(np.float64)
    return np.concatenate([lower, 1.0 - lower[-2::-1]])


def compile_calibration(temperature: Floats, intercept: Floats) -> CalibrationTable:
    """The table of float64 [NUM_CLASSES, k] temperatures (> 0) and intercepts, all finite."""
    knots = _knots()
    logit = np.log(knots / (1.0 - knots))
    values = 1.0 / (1.0 + np.exp(-(logit / temperature[..., None] + intercept[..., None])))
    is_active = ((temperature != 1.0) | (intercept != 0.0)).astype(np.uint8)
    return CalibrationTable(values, is_active, int(not is_active.any()))


def identity_table(max_draft_tokens: int) -> CalibrationTable:
    """The table that leaves every confidence as it is."""
    shape = (NUM_CLASSES, max_draft_tokens)
    return compile_calibration(np.ones(shape), np.zeros(shape))


def calibrate(
    table: CalibrationTable,
    sampling_class: npt.NDArray[np.integer[Any]],
    confidence: npt.NDArray[np.floating[Any]],
) -> npt.NDArray[np.floating[Any]]:
    """Calibrated confidences [R, k] in the dtype given; the definition of `calibrate_rows`.

    sampling_class: integers [R], GREEDY or SAMPLED; any other counts as SAMPLED.
    """
    value = confidence.astype(np.float64)
    is_inside = (value > 0.0) & (value < 1.0)
    safe = np.where(is_inside, value, 0.5)
    is_low = safe <= 0.5
    bits = np.where(is_low, safe, 1.0 - safe).astype(np.float32).view(np.int32).astype(np.int64)
    place = np.maximum(bits - _FIRST_BITS, 0)
    cell = place >> _DROPPED_BITS
    share = (place & _SHARE_MASK) * _SHARE_UNIT
    begin = np.where(is_low, cell, _NUM_KNOTS - 1 - cell)
    end = np.where(is_low, begin + 1, begin - 1)
    rows = np.where(sampling_class == GREEDY, GREEDY, SAMPLED)[:, None]
    positions = np.arange(confidence.shape[1])
    low, high = table.values[rows, positions, begin], table.values[rows, positions, end]
    mixed = low + share * (high - low)
    changes = is_inside & (table.is_active[rows, positions] != 0)
    return np.where(changes, mixed, value).astype(confidence.dtype)


@njit(cache=True, nogil=True)
def _calibrate_value(values: Any, confidence: float) -> Any:
    is_low = confidence <= 0.5
    bits = float32_to_bits(np.float32(confidence if is_low else 1.0 - confidence))
    place = max(bits - _FIRST_BITS, 0)
    cell = place >> _DROPPED_BITS
    share = (place & _SHARE_MASK) * _SHARE_UNIT
    begin = cell if is_low else _NUM_KNOTS - 1 - cell
    low = values[begin]
    high = values[begin + 1 if is_low else begin - 1]
    return low + share * (high - low)


@njit(cache=True, nogil=True)
def calibrate_rows(
    table: CalibrationTable, sampling_class: Any, num_rows: int, confidence: Any, out: Any
) -> None:
    """Compiled `calibrate` of the first `num_rows` rows of `confidence` [R, k] into `out`."""
    for row in range(num_rows):
        of_class = GREEDY if sampling_class[row] == GREEDY else SAMPLED
        for position in range(confidence.shape[1]):
            value = np.float64(confidence[row, position])
            if table.is_active[of_class, position] != 0 and 0.0 < value < 1.0:
                out[row, position] = _calibrate_value(table.values[of_class, position], value)
            else:
                out[row, position] = confidence[row, position]
