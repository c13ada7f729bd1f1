"""Decisions over time: what the loads were, what was decided, what was predicted and came."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from specsched_scheduler.planner import RecentDecision

__all__ = ["BatchSize", "DecisionLog", "Second"]

NUM_SECONDS = 300
"""How far back the page sees."""
_MAX_SIZES = 1024


@dataclass(slots=True)
class Second:
    """Sums over the decisions and reports of one second. time_s: Unix time of its begin.

    plain_ms: see JudgedStep.
    """

    time_s: int
    num_decisions: int = 0
    num_requests: int = 0
    num_draft_tokens: int = 0
    budget: int = 0
    num_judged_steps: int = 0
    predicted_ms: float = 0.0
    measured_ms: float = 0.0
    plain_ms: float = 0.0


@dataclass(slots=True)
class BatchSize:
    """Sums over the decisions for so many requests."""

    num_requests: int
    num_decisions: int = 0
    num_draft_tokens: int = 0
    budget: int = 0


_CHOICE_HOLDS_S = 5.0


@dataclass(slots=True)
class DecisionLog:
    """One writer. num_*: totals of the decisions seen. newest: the last one, None before.

    chosen: the last one that had drafts to choose from, if that was in the last seconds; else the
    newest.

    The private ring holds 1024 decisions; were more to come between two looks, the older ones
    would be missing here, not in the planner's counters.
    """

    newest: RecentDecision | None = None
    chosen: RecentDecision | None = None
    chosen_s: float = 0.0
    num_requests: int = 0
    num_draft_tokens: int = 0
    budget: int = 0
    seconds: deque[Second] = field(default_factory=lambda: deque(maxlen=NUM_SECONDS))
    sizes: dict[int, BatchSize] = field(default_factory=dict)

    def observe(self, decisions: Sequence[RecentDecision], now_s: float) -> None:
        """Decisions that came since the last time, oldest first. now_s: Unix time."""
        if not decisions:
            return
        self.newest = decisions[-1]
        with_drafts = next((each for each in reversed(decisions) if each.num_draft_tokens), None)
        if with_drafts is not None:
            self.chosen, self.chosen_s = with_drafts, now_s
        elif now_s - self.chosen_s > _CHOICE_HOLDS_S:
            self.chosen = self.newest
        second = self.second(now_s)
        for each in decisions:
            size = self.sizes.get(each.num_requests)
            if size is None and len(self.sizes) < _MAX_SIZES:
                size = self.sizes[each.num_requests] = BatchSize(each.num_requests)
            # A budget may exceed the drafts that are there.
            budget = min(each.decision.budget, each.num_draft_tokens)
            self.num_requests += each.num_requests
            self.num_draft_tokens += each.num_draft_tokens
            self.budget += budget
            second.num_decisions += 1
            second.num_requests += each.num_requests
            second.num_draft_tokens += each.num_draft_tokens
            second.budget += budget
            if size is not None:
                size.num_decisions += 1
                size.num_draft_tokens += each.num_draft_tokens
                size.budget += budget

    def second(self, now_s: float) -> Second:
        """The sums of the present second."""
        if not self.seconds or self.seconds[-1].time_s < int(now_s):
            self.seconds.append(Second(int(now_s)))
        return self.seconds[-1]
