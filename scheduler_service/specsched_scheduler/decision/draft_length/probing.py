"""When longer drafts than the present ones are tried, how long, and for how many steps.

Positions that are not drafted are learned from probes: longer drafts in some steps in a row, of
which all but the first count. A probe that looked worth it is followed by a longer one soon; after
each other the next is twice as far away. Most probes go no further than the next longer profiled
length, since what that does not bring the rest will not either. For where drafts cost about the
same however long they are some are full: one in four where more than the next length could be worth
it, by what the last ones brought, and else one in sixteen. After two in a row that looked worth it
they are full as well, so that all lengths come to be known at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_protocol.compiling import njit

from specsched_scheduler.decision.draft_length.loads import (
    MAX_PROBE_PERIOD,
    MAX_PROBE_PERIOD_OFF,
    min_probe_period,
    next_longer,
)
from specsched_scheduler.decision.draft_length.outcome import speed_of
from specsched_scheduler.decision.draft_length.plan import MIN_PROBE_STEPS, DraftLengthPlan

__all__ = ["observe_probe", "plan_at", "probe_soon"]

MAX_PROBE_STEPS = 10
"""Steps of a probe that follows a promising one, at most."""
FOLLOW_UP_REQUEST_STEPS = 64
"""What it is to teach: of many requests two steps say as much as ten of one."""
FULL_PROBES, FULL_PROBES_HOPELESS = 4, 16
"""Of so many probes one is full, where that could be worth it and where not."""
FULL_AFTER_PROMISING = 2
_HOPE = 1.02
"""By how much that may have changed since."""


@njit(cache=True, nogil=True)
def probe_soon(loads: Any, load: int) -> None:
    """The length or the load is another."""
    loads.probe_period[load] = max(min_probe_period(load), loads.min_period[load])
    loads.probe_steps[load] = MIN_PROBE_STEPS
    loads.num_promising[load] = 0
    loads.num_probed[load] = 0
    loads.probed_speed[load] = 0.0


@njit(cache=True, nogil=True)
def observe_probe(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    loads: Any, load: int, gain: Any, extra: Any, num_sampling: int, num_known: int, worth_it: float
) -> None:
    """A step is over. worth_it: speed from which longer drafts than the present ones are."""
    if num_known > loads.draft_tokens[load]:
        loads.num_probed[load] += 1
        loads.probed_speed[load] += speed_of(gain, extra, num_known)
        return
    if loads.num_probed[load] == 0:
        return
    is_promising = loads.probed_speed[load] / loads.num_probed[load] > worth_it
    loads.num_probes[load] += 1
    period, num_promising = loads.probe_period[load], loads.num_promising[load]
    probe_soon(loads, load)
    if is_promising:
        loads.num_promising[load] = num_promising + 1
        num_taught = -(-FOLLOW_UP_REQUEST_STEPS // num_sampling)
        loads.probe_steps[load] = min(MIN_PROBE_STEPS - 1 + num_taught, MAX_PROBE_STEPS)
    else:
        limit = MAX_PROBE_PERIOD if loads.draft_tokens[load] > 0 else MAX_PROBE_PERIOD_OFF
        loads.probe_period[load] = min(2 * period, limit)


@njit(cache=True, nogil=True)
def plan_at(loads: Any, load: int, table: Any, is_frozen: bool) -> Any:
    """Drafts of the length that is best there, and the probes between them unless frozen."""
    draft_tokens, max_draft_tokens = loads.draft_tokens[load], np.int64(loads.gain.shape[1])
    if is_frozen or draft_tokens == max_draft_tokens:
        return DraftLengthPlan(draft_tokens, 0, draft_tokens, MIN_PROBE_STEPS)
    tokens = _probe_tokens(loads, load, table)
    period = max(loads.probe_period[load], loads.min_period[load])
    return DraftLengthPlan(draft_tokens, period, tokens, loads.probe_steps[load])


@njit(cache=True, nogil=True)
def _probe_tokens(loads: Any, load: int, table: Any) -> Any:
    draft_tokens, max_draft_tokens = loads.draft_tokens[load], np.int64(loads.gain.shape[1])
    longer = next_longer(loads, load, table)
    if longer == max_draft_tokens:
        return max_draft_tokens
    speed = loads.speed[load]
    could_be = speed[longer + 1 :].max() * _HOPE > speed[draft_tokens]
    every = FULL_PROBES if could_be else FULL_PROBES_HOPELESS
    is_full = loads.num_probes[load] % every == every - 1
    is_full = is_full or loads.num_promising[load] >= FULL_AFTER_PROMISING
    return max_draft_tokens if is_full else longer
