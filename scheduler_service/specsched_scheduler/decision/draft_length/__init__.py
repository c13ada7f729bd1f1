"""How long the next drafts are, 0..k: learned from what longer ones brought and cost.

    speed(L) = (1 + sum over j < L of gain[j]) / (1 + sum over j < L of extra[j])

gain[j]: accepted drafts at position j per sampling request. extra[j]: what position j adds to the
step (its share of the verified rows, and drafting one token further), as a share of the step
without drafts. Both are averages over many steps; a single step says next to nothing, and following
it loses more than drafting always.

Batch sizes are learned apart, by powers of two, each with a length of its own: what is best at 16
requests says little of one. One that was not seen before begins with the length that is expected to
be fastest, by what steps cost at that size and by how sure recent drafts were at any (Survivals).
Outcomes then count more with each step, at once where they contradict: they hold however wrong the
confidences are.
"""

from __future__ import annotations

from specsched_scheduler.decision.draft_length.learner import DraftLength
from specsched_scheduler.decision.draft_length.loads import (
    NEVER,
    NUM_LOADS,
    LoadState,
    nearest_load,
)
from specsched_scheduler.decision.draft_length.plan import (
    DraftLengthPlan,
    next_draft_tokens,
    pack_plan,
    unpack_plan,
)
from specsched_scheduler.decision.draft_length.survivals import NUM_QUANTILES, Survivals

__all__ = [
    "NEVER",
    "NUM_LOADS",
    "NUM_QUANTILES",
    "DraftLength",
    "DraftLengthPlan",
    "LoadState",
    "Survivals",
    "nearest_load",
    "next_draft_tokens",
    "pack_plan",
    "unpack_plan",
]
