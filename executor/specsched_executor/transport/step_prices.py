"""What a step of n rows costs by the executor's own profile."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from specsched_protocol.v1 import plan_pb2

__all__ = ["verify_ms_by_rows"]


def verify_ms_by_rows(cost: plan_pb2.CostModel, max_rows: int) -> npt.NDArray[np.float64]:
    """Milliseconds of a verification of 0..max_rows rows: float64 [max_rows + 1].

    Up to the capture limit the least cost of a profiled size that has room, beyond it interpolated.
    All 0 where fewer than three sizes were profiled: then every budget has the same price.
    """
    points = sorted((each.tokens, float(np.median(each.ms))) for each in cost.verify if each.ms)
    if len(points) < 3:
        return np.zeros(max_rows + 1)
    sizes = np.array([tokens for tokens, _ in points])
    least = np.minimum.accumulate(np.array([ms for _, ms in points])[::-1])[::-1]
    rows = np.arange(max_rows + 1)
    stairs = least[np.minimum(np.searchsorted(sizes, rows), len(sizes) - 1)]
    return np.where(rows <= cost.capture_limit, stairs, np.interp(rows, sizes, least))
