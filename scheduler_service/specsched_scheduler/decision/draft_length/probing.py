"""When longer drafts than the present ones are tried, how long, and for how many steps.

Positions that are not drafted are learned from probes: longer drafts in some steps in a row, of
which all but the first count. A probe that looked worth it is followed by a longer one soon; after
each other the next is twice as far away. Most probes go no further than the next longer profiled
length, since what that does not bring the rest will not either. For where drafts cost about the
same however long they are some are full: one in four where more than the next length could be worth
it, by what the last ones brought, and else one in sixteen.
"""

from __future__ import annotations

from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.draft_length.outcome import Floats, Outcome
from specsched_scheduler.decision.draft_length.plan import MIN_PROBE_STEPS, DraftLengthPlan

__all__ = ["Probing"]

MIN_PROBE_PERIOD, MAX_PROBE_PERIOD_OFF, MAX_PROBE_PERIOD = 32, 128, 512
"""Steps from probe to probe: the limits of the last two are without drafts, and with some. Between
the first two, never fewer than there are requests: a probe of many tells more, and costs more."""
MAX_PROBE_STEPS = 10
"""Steps of a probe that follows a promising one, at most."""
FOLLOW_UP_REQUEST_STEPS = 64
"""What it is to teach: of many requests two steps say as much as ten of one."""
FULL_PROBES, FULL_PROBES_HOPELESS = 4, 16
"""Of so many probes one is full, where that could be worth it and where not."""
_HOPE = 1.02
"""By how much that may have changed since."""


class Probing:
    """The probes at one batch size. period: steps from one to the next."""

    def __init__(self, max_draft_tokens: int, num_requests: int) -> None:
        self._max_draft_tokens = max_draft_tokens
        self._min_period = min(max(MIN_PROBE_PERIOD, num_requests), MAX_PROBE_PERIOD_OFF)
        self.period, self._steps = self._min_period, MIN_PROBE_STEPS
        self._num_probes = 0
        self._speeds: list[float] = []  # of the steps of the probe that is under way

    def restart(self) -> None:
        """Probe soon: the length or the load is another."""
        self.period, self._steps = self._min_period, MIN_PROBE_STEPS
        self._speeds.clear()

    def go_on(self, period: int) -> None:
        """Probe as often as was found to be enough elsewhere."""
        self.period = period

    def observe(self, outcome: Outcome, draft_tokens: int, worth_it: float) -> None:
        """A step is over. worth_it: speed from which longer drafts than `draft_tokens` are."""
        if outcome.num_known > draft_tokens:
            self._speeds.append(outcome.speed())
        elif self._speeds:
            is_promising = sum(self._speeds) / len(self._speeds) > worth_it
            self._conclude(is_promising, draft_tokens, outcome.num_sampling)

    def plan(self, draft_tokens: int, speed: Floats, table: CostTable) -> DraftLengthPlan:
        """Drafts of `draft_tokens`, and the probes between them. speed: by length, as learned."""
        if draft_tokens == self._max_draft_tokens:
            return DraftLengthPlan(draft_tokens, 0, draft_tokens)
        tokens = self._probe_tokens(draft_tokens, speed, table)
        return DraftLengthPlan(draft_tokens, self.period, tokens, self._steps)

    def _conclude(self, is_promising: bool, draft_tokens: int, num_sampling: int) -> None:
        self._speeds.clear()
        self._num_probes += 1
        if is_promising:
            self.period, self._steps = self._min_period, _follow_up_steps(num_sampling)
        else:
            limit = MAX_PROBE_PERIOD if draft_tokens else MAX_PROBE_PERIOD_OFF
            self.period, self._steps = min(2 * self.period, limit), MIN_PROBE_STEPS

    def _probe_tokens(self, draft_tokens: int, speed: Floats, table: CostTable) -> int:
        longer = table.short_draft_tokens[table.short_draft_tokens > draft_tokens]
        if not len(longer):
            return self._max_draft_tokens
        could_be = speed[longer[0] + 1 :].max(initial=0.0) * _HOPE > speed[draft_tokens]
        every = FULL_PROBES if could_be else FULL_PROBES_HOPELESS
        is_full = self._num_probes % every == every - 1
        return self._max_draft_tokens if is_full else int(longer[0])


def _follow_up_steps(num_sampling: int) -> int:
    num_taught = -(-FOLLOW_UP_REQUEST_STEPS // num_sampling)
    return min(MIN_PROBE_STEPS - 1 + num_taught, MAX_PROBE_STEPS)
