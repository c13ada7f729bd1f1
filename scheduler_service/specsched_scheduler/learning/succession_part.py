"""How drafts follow one another in the document of learned state.

    {"positions": [{"variance": ..., "covariance": ..., "evidence": ...}] (k)}

The numbers are those of learning.succession.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from specsched_scheduler.learning.draft_length_part import Strict
from specsched_scheduler.learning.succession import SuccessionState

__all__ = ["SuccessionPart", "SuccessionPosition"]


class SuccessionPosition(Strict):
    """One draft position."""

    variance: Annotated[float, Field(ge=0, le=1)]
    covariance: Annotated[float, Field(ge=-1, le=1)]
    evidence: Annotated[float, Field(ge=0, le=2**53)]


class SuccessionPart(Strict):
    """All positions."""

    positions: tuple[SuccessionPosition, ...]

    @classmethod
    def of(cls, state: SuccessionState) -> SuccessionPart:
        """The part that says what `state` does."""
        rows = zip(*(each.tolist() for each in state), strict=True)
        named = (dict(zip(SuccessionState._fields, row, strict=True)) for row in rows)
        return cls(positions=tuple(SuccessionPosition(**each) for each in named))

    def state(self) -> SuccessionState:
        """The same for a Succession."""
        return SuccessionState(
            *(
                np.array([getattr(each, name) for each in self.positions], dtype=np.float64)
                for name in SuccessionState._fields
            )
        )
