"""Confidences of drafts, made to tell of the drafts that follow them.

A budget rests on confidences one draft old (the lossless rule), and of the next draft of the same
request they tell only a part: it may go well where the last one went badly. So survivals are pulled
towards the mean of the request's last drafts,

    pulled[r, j] = survival[r, j] + share * pull[j] * (own[r, j] - survival[r, j])
    expected[r, j] = min(expected[r, j - 1], pulled[r, j])         share = 1 / N

own[r, j] is the mean over the last drafts of the request, those of the step included: of the first
eight each counts alike, then the newest for an eighth. pull[j] is 1 less the slope of the next
survival over this one, both relative to own, as it was learned. N requests sample: alone, that is
the best linear forecast. Of many, who survives changes from draft to draft and the rows go to those
who do, so that the old survivals tell by themselves how many drafts are worth it; beyond 64 nothing
is pulled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

__all__ = ["OwnDrafts", "anticipate_rows", "new_own_drafts", "note_own_draft", "survivals_of"]

_MEMORY = 8
_MAX_REQUESTS = 64
"""Of more at once the pull is too small to be worth its time."""


class OwnDrafts(NamedTuple):
    """The last drafts of the request in each of S slots.

    survival: float64 [S, k], means. num_drafts: int64 [S, k], drafts in them. generation: int64
    [S], whose drafts they are. scratch: float64 [k].
    """

    survival: npt.NDArray[np.float64]
    num_drafts: npt.NDArray[np.int64]
    generation: npt.NDArray[np.int64]
    scratch: npt.NDArray[np.float64]


def new_own_drafts(num_slots: int, max_draft_tokens: int) -> OwnDrafts:
    """No request had any."""
    shape = (num_slots, max_draft_tokens)
    return OwnDrafts(
        survival=np.zeros(shape),
        num_drafts=np.zeros(shape, dtype=np.int64),
        generation=np.full(num_slots, -1, dtype=np.int64),
        scratch=np.zeros(max_draft_tokens),
    )


@njit(cache=True, nogil=True)
def note_own_draft(own: Any, slot: int, generation: int, survival: Any) -> None:
    """Take a draft in. survival: of its positions, at most k."""
    means, counts = own.survival[slot], own.num_drafts[slot]
    if own.generation[slot] != generation:
        own.generation[slot] = generation
        counts[:] = 0
    for position in range(len(survival)):
        value = np.float64(survival[position])
        counts[position] = min(counts[position] + 1, _MEMORY)
        before = means[position] if counts[position] > 1 else value
        means[position] = before + (value - before) / counts[position]


@njit(cache=True, nogil=True)
def anticipate_rows(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    own: Any,
    pull: Any,
    slot_id: Any,
    generation: Any,
    num_valid: Any,
    num_rows: int,
    num_sampling: int,
    confidence: Any,
    out: Any,
) -> Any:
    """Confidences by which to decide a step: `out`, or those given where nothing is pulled.

    slot_id, generation, num_valid: [R], whose drafts these are, and how many positions count.
    confidence, out: float32 [R, k]. num_rows: leading rows that are looked at. pull: [k].
    """
    if num_sampling > _MAX_REQUESTS:
        return confidence
    survival, share = own.scratch, 1.0 / max(num_sampling, 1)
    for row in range(num_rows):
        length = survivals_of(confidence[row], num_valid[row], survival)
        slot = np.int64(slot_id[row])
        note_own_draft(own, slot, np.int64(generation[row]), survival[:length])
        out[row], expected = confidence[row], 1.0
        for position in range(length):
            own_survival = own.survival[slot, position]
            told = survival[position]
            pulled = told + share * pull[position] * (own_survival - told)
            before, expected = expected, min(expected, pulled)
            out[row, position] = expected / before if before > 0.0 else 0.0
    return out


@njit(cache=True, nogil=True)
def survivals_of(confidence: Any, num_valid: Any, out: Any) -> Any:
    """Fill `out` with the survivals of a draft; how many positions have a probability."""
    limit: Any = np.int64(num_valid)
    length, survival = min(limit, len(out)), 1.0
    for position in range(length):
        value = np.float64(confidence[position])
        if not 0.0 <= value <= 1.0:
            return position
        survival *= value
        out[position] = survival
    return length
