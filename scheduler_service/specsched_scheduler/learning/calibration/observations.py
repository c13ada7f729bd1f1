"""Confidences with what became of their drafts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_LOGIT", "Observations", "to_logit"]

MAX_LOGIT = 12.0
"""Confidences of 0 and 1 count as this far from even: a float32 tells no more."""

Floats = npt.NDArray[np.float64]


def to_logit(confidence: npt.NDArray[np.floating]) -> Floats:
    """log(p / (1 - p)) within +-MAX_LOGIT; NaN stays NaN."""
    value = confidence.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        logit = np.log(value) - np.log1p(-value)
    clipped: Floats = np.clip(logit, -MAX_LOGIT, MAX_LOGIT)
    return clipped


@dataclass(frozen=True, slots=True)
class Observations:
    """n drafts of one sampling class.

    logit: float64 [n, k], NaN where there is no confidence. num_verified, num_accepted: int64 [n].
    group: int64 [n], equal for rows of one request: they are not independent.

    Position j tells something only where it was verified. Whether the draft SURVIVED to j (the
    outcome that the cumulative product is fitted to) is then known even if an earlier draft was
    rejected; where j was not verified it is not, also if an earlier one was rejected: counting
    those rows would keep failures and drop successes. Which positions were verified depends on the
    confidences alone, so what is left is unbiased given the confidence.
    """

    logit: Floats
    num_verified: npt.NDArray[np.int64]
    num_accepted: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]

    @property
    def max_draft_tokens(self) -> int:
        """k."""
        return int(self.logit.shape[1])

    def __len__(self) -> int:
        return len(self.logit)

    def rows(self, index: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice) -> Observations:
        """A part of them."""
        return Observations(
            self.logit[index],
            self.num_verified[index],
            self.num_accepted[index],
            self.group[index],
        )

    def joined(self, other: Observations) -> Observations:
        """Both, of the same k, their groups kept apart. Raises ValueError for another k."""
        if other.max_draft_tokens != self.max_draft_tokens:
            raise ValueError(
                f"{other.max_draft_tokens} draft positions cannot be joined to"
                f" {self.max_draft_tokens}"
            )
        apart = self.group.max(initial=-1) + 1 - other.group.min(initial=0)
        return Observations(
            np.concatenate((self.logit, other.logit)),
            np.concatenate((self.num_verified, other.num_verified)),
            np.concatenate((self.num_accepted, other.num_accepted)),
            np.concatenate((self.group, other.group + apart)),
        )

    def is_known(self, position: int) -> npt.NDArray[np.bool_]:
        """bool [n]: whether it is known if the draft survived to this position."""
        return (self.num_verified > position) & np.isfinite(self.logit[:, : position + 1]).all(1)

    def reached(self, position: int) -> Floats:
        """float64 [n]: 1 where drafts 0..position were all accepted."""
        return (self.num_accepted > position).astype(np.float64)
