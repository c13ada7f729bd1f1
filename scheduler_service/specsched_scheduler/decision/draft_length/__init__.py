"""How long the next drafts are, 0..k: learned from what longer ones brought and cost.

    speed(L) = (1 + sum over j < L of gain[j]) / (1 + sum over j < L of extra[j])

gain[j]: accepted drafts at position j per sampling request. extra[j]: what position j adds to the
step (its verified rows, and drafting one token further), as a share of the step without drafts.
Both are averages over many steps; a single step says next to nothing, and following it loses more
than drafting always. They are outcomes, so that they hold however wrong the confidences are.

Batch sizes are learned apart, by powers of two, each with a length of its own: what is best at 16
requests says little of one. A batch size not seen before begins with full drafts.
"""

from __future__ import annotations

from specsched_scheduler.decision.draft_length.learner import DraftLength
from specsched_scheduler.decision.draft_length.loads import LoadState
from specsched_scheduler.decision.draft_length.plan import DraftLengthPlan, next_draft_tokens

__all__ = ["DraftLength", "DraftLengthPlan", "LoadState", "next_draft_tokens"]
