"""Compiled: what a policy wants done with rows that its plan did not count on."""

from __future__ import annotations

from typing import Any

from specsched_protocol.compiling import njit

from specsched_scheduler.decision.codes import (
    SPEED_POLICIES,
    DecisionFlags,
    Feature,
    PolicyCode,
)
from specsched_scheduler.decision.step import PolicyRule

__all__ = ["row_flags"]

# Numba inlines module integers; enum members it would look up.
SLO = int(PolicyCode.SLO)
FILLING = (*SPEED_POLICIES, int(PolicyCode.RATIO))
FILL = int(Feature.FILL)
ROWS_BOUND, FILL_SIZE = int(DecisionFlags.ROWS_BOUND), int(DecisionFlags.FILL_SIZE)


@njit(cache=True, nogil=True)
def row_flags(rule: PolicyRule) -> Any:
    """DecisionFlags of a policy: a bound on the step is one on its rows; where tokens are
    weighed against time, rows that take none are used."""
    flags = ROWS_BOUND if rule.code == SLO else 0
    fills = rule.code in FILLING and not rule.left_out & FILL
    return flags | FILL_SIZE if fills else flags
