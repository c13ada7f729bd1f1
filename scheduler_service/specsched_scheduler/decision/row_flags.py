"""Compiled: what a policy wants done with rows that its plan did not count on."""

from __future__ import annotations

from typing import Any

from specsched_protocol.compiling import njit

from specsched_scheduler.decision.codes import DecisionFlags, PolicyCode

__all__ = ["row_flags"]

# Numba inlines module integers; enum members it would look up.
THROUGHPUT, RATIO, SLO = int(PolicyCode.THROUGHPUT), int(PolicyCode.RATIO), int(PolicyCode.SLO)
ROWS_BOUND, FILL_SIZE = int(DecisionFlags.ROWS_BOUND), int(DecisionFlags.FILL_SIZE)


@njit(cache=True, nogil=True)
def row_flags(policy_code: int) -> Any:
    """DecisionFlags of a PolicyCode: a bound on the step is one on its rows; where tokens are
    weighed against time, rows that take none are used."""
    flags = ROWS_BOUND if policy_code == SLO else 0
    return flags | FILL_SIZE if policy_code in (THROUGHPUT, RATIO, SLO) else flags
