"""What drafts are expected to survive, by those of the step before.

A budget rests on confidences one draft old (the lossless rule), and of the next draft of the same
request they tell only a part: it may go well where the last one went badly. So survivals are pulled
towards their mean, by as much as they were found not to tell,

    pulled[r, j] = survival[r, j] + share * pull[j] * (mean[j] - survival[r, j])
    expected[r, j] = min(expected[r, j - 1], pulled[r, j])
    share = 2 / (N + 1)

pull[j] is 1 less the slope of a draft's survival over that of the draft before. N requests sample:
of one, that is the best linear forecast. Of many, who survives changes from draft to draft and the
rows go to those who do, so that the old survivals tell by themselves how many drafts are worth it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

__all__ = ["Anticipation", "anticipate", "no_anticipation", "pull_share"]

Floats = npt.NDArray[np.float64]


class Anticipation(NamedTuple):
    """What was learned of drafts that follow one another, by position.

    survival: float64 [k], mean[j], which never rises. pull: float64 [k], in 0..1.
    """

    survival: Floats
    pull: Floats


def no_anticipation(max_draft_tokens: int) -> Anticipation:
    """Nothing is known: survivals stay as they are told."""
    return Anticipation(*np.zeros((2, max_draft_tokens)))


@njit(cache=True, nogil=True)
def pull_share(num_sampling: int) -> Any:
    """Share of the pull that applies to a step of so many requests."""
    return 2.0 / (num_sampling + 1.0)


def anticipate(survival: Floats, num_sampling: int, mean: Floats, pull: Floats) -> Floats:
    """Expected survivals [R, k]; mean, pull: [k]. The definition of what `fast` computes."""
    share = 2.0 / (num_sampling + 1.0)
    return np.minimum.accumulate(survival + share * pull * (mean - survival), axis=1)
