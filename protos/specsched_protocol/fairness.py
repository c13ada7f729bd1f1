"""Fair weights: what a request got of late makes its drafts count less.

    recent <- recent + RECENT_SHARE * (tokens of the step - recent)        INITIAL_RECENT at first
    fair weight = weight * recent^-alpha

Ranking all drafts of a batch together favours the requests that are easy to draft for. With alpha =
1 a draft counts relative to the pace its request already has. The weight counts for the anchor too,
so ranking and budget go together for what is known as alpha-fairness of the paces (Mo and Walrand,
IEEE/ACM Transactions on Networking 8(5), 2000): their largest sum at 0, largest product at 1, the
smallest sum of times per token at 2, and ever more the slowest request beyond.

Scheduler and executor keep `recent` each from the same counts, so that budget and ranking agree up
to the steps one of them has not seen. It holds accepted counts of finished steps only, so that it
never depends on a draft that it helps to rank (lossless invariant).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specsched_protocol.compiling import njit

__all__ = ["INITIAL_RECENT", "RecentTokens", "fair_weights"]

RECENT_SHARE = 1 / 32
"""Share of the newest step in the mean."""
INITIAL_RECENT = 2.0
"""Tokens per step of a request that nothing is known of."""


class RecentTokens:
    """Recent tokens per step of every slot; a reused slot begins anew. Compiles on construction.

    recent: float64 [slots]. generation: int64 [slots], whose requests they are. Both are written in
    place, one thread writes; a reader without a lock sees each number whole.
    """

    def __init__(self, num_slots: int) -> None:
        self.recent = np.full(num_slots, INITIAL_RECENT)
        self.generation = np.zeros(num_slots, dtype=np.int64)
        nobody = np.zeros(0, dtype=np.uint32)
        self.observe(nobody, nobody, nobody)

    def observe(
        self,
        slot_id: npt.NDArray[np.integer[Any]],
        generation: npt.NDArray[np.integer[Any]],
        num_tokens: npt.NDArray[np.integer[Any]],
    ) -> None:
        """Take in tokens of steps (accepted drafts and the bonus token) of their requests, [R].

        A request that is in several steps comes once for each, oldest first.
        """
        _observe(self.recent, self.generation, slot_id, generation, num_tokens)

    def of(
        self, slot_id: npt.NDArray[np.integer[Any]], generation: npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.float64]:
        """Float64 [R]: of these requests."""
        is_known = self.generation[slot_id] == generation
        recent: npt.NDArray[np.float64] = np.where(is_known, self.recent[slot_id], INITIAL_RECENT)
        return recent


@njit(cache=True, nogil=True)
def _observe(recent: Any, owner: Any, slot_id: Any, generation: Any, num_tokens: Any) -> None:
    for row in range(len(slot_id)):
        slot = slot_id[row]
        before = recent[slot] if owner[slot] == generation[row] else INITIAL_RECENT
        recent[slot] = before + RECENT_SHARE * (num_tokens[row] - before)
        owner[slot] = generation[row]


def fair_weights(
    weight: npt.NDArray[np.floating[Any]], recent: npt.NDArray[np.float64], alpha: float
) -> npt.NDArray[np.float64]:
    """Float64 [R]: weight * recent^-alpha."""
    fair: npt.NDArray[np.float64] = weight.astype(np.float64) * np.power(recent, -alpha)
    return fair
