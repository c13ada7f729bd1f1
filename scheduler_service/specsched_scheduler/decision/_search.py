"""Compiled: the budget search that sorts next to nothing.

The definition (`first_maximum`) needs every gain in rank order. This search needs bounds only:

1. Gains fall into buckets by value; ranks and sums are then known at bucket borders, and inside a
   bucket bounded: the m best of it sum to at least m times its mean, at most m times its edge.
2. A bucket is DEAD where no budget of it can reach a ratio that another is sure to. It is CLOSED
   where the price does not rise inside it: each of its gains then lifts the ratio, so only its last
   budget can win. The rest are OPEN: sorted and walked.
3. The best budget stands if it leads by more than the rounding of any summation order. If it does
   not, the definition decides. So the result is that of the definition, always.

On a flat table every bucket but the last few is dead and those are closed: nothing is sorted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from specsched_protocol.compiling import njit

from specsched_scheduler.decision._order import (
    CLOSED,
    DEAD,
    OPEN,
    Choice,
    bucket_edge,
    bucket_gains,
    bucket_shape,
    first_maximum,
    order_all,
    order_buckets,
)
from specsched_scheduler.decision._price import (
    Objective,
    price_at,
    price_floor_at,
    stair_end_at,
)
from specsched_scheduler.decision.workspace import Workspace

__all__ = ["search_budget"]

FEW_GAINS = 48
"""Up to so many gains, sorting them all is the fastest way."""
MIN_SAVED_SHARE = 4
"""Where more than one in so many gains must be sorted, the definition is not slower."""
UNIT_ROUNDOFF = 2.0**-53
TINY_WEIGHT = 1e-100
"""Below it, ratios may be subnormal and round otherwise than the bounds here assume."""
SIGNIFICANT = 2.0**-50
"""A gain above this share of W + all gains lifts the ratio through the rounding of every step."""


class Bounds(NamedTuple):
    """Limits that one search works within.

    max_budget: largest budget allowed. num_gains, num_buckets: in use. significant: least gain that
    surely lifts the ratio at an equal price; num_significant: leading buckets that hold no smaller
    one. margin: relative room for the rounding of sums in any order.
    """

    max_budget: int
    num_gains: int
    num_buckets: int
    significant: float
    num_significant: int
    margin: float


class Race(NamedTuple):
    """The leading budget, and the last candidate, which a later one may yet dominate.

    contested: a rival is too close to the leader for sums of unknown order to tell them apart.
    """

    best: float
    choice: Choice
    contested: bool
    held_price: float
    held_choice: Choice


@njit(cache=True, nogil=True)
def _settle(total_weight: float, race: Race, margin: float) -> Any:
    """Run the held candidate against the leader."""
    ratio = (total_weight + race.held_choice.gain_sum) / race.held_price
    leads = ratio > race.best
    leads_clearly = ratio > race.best * (1.0 + margin)
    is_close = ratio >= race.best * (1.0 - margin)
    return Race(
        ratio if leads else race.best,
        race.held_choice if leads else race.choice,
        (race.contested or is_close) and not leads_clearly,
        race.held_price,
        race.held_choice,
    )


@njit(cache=True, nogil=True)
def _enter(objective: Objective, race: Race, choice: Choice, is_gain: bool, margin: float) -> Any:
    """Hold a candidate. One that gains on the held one and is no dearer replaces it."""
    price_ms = price_at(objective, choice.budget)
    if not is_gain or price_ms > race.held_price:
        race = _settle(objective.total_weight, race, margin)
    return Race(race.best, race.choice, race.contested, price_ms, choice)


@njit(cache=True, nogil=True)
def _mark_borders(
    objective: Objective, max_budget: int, num_buckets: int, workspace: Workspace
) -> Any:
    """Rank and sum before each bucket; returns the best ratio at a border and the sum of all."""
    best = objective.total_weight / price_at(objective, 0)
    rank, base = 0, 0.0
    for bucket in range(num_buckets):
        workspace.bucket_rank[bucket] = rank
        workspace.bucket_base[bucket] = base
        if workspace.bucket_count[bucket] > 0:
            rank += workspace.bucket_count[bucket]
            base += workspace.bucket_sum[bucket]
            if rank <= max_budget:
                best = max(best, (objective.total_weight + base) / price_at(objective, rank))
    return best, base


@njit(cache=True, nogil=True)
def _mark_states(objective: Objective, bounds: Bounds, bar: float, workspace: Workspace) -> None:
    """Tell DEAD, CLOSED and OPEN buckets apart by their borders. bar: a ratio surely reached."""
    for bucket in range(bounds.num_buckets):
        workspace.bucket_state[bucket] = DEAD
        rank, count = workspace.bucket_rank[bucket], workspace.bucket_count[bucket]
        if count == 0 or rank >= bounds.max_budget:
            continue
        floor = price_floor_at(objective, rank + 1)
        most = workspace.bucket_base[bucket] + workspace.bucket_sum[bucket]
        if objective.total_weight + most < bar * floor:
            continue
        is_flat = price_at(objective, rank + count) <= floor
        is_closed = bucket < bounds.num_significant and rank + count <= bounds.max_budget
        workspace.bucket_state[bucket] = CLOSED if is_flat and is_closed else OPEN


@njit(cache=True, nogil=True)
def _stair_bound(
    objective: Objective, bounds: Bounds, bucket: int, most: float, workspace: Workspace
) -> Any:
    """Best ratio at the stair ends of a bucket if each of its gains is `most`."""
    rank, base = workspace.bucket_rank[bucket], workspace.bucket_base[bucket]
    last = min(rank + workspace.bucket_count[bucket], bounds.max_budget)
    best, budget = 0.0, rank
    while budget < last:
        budget = min(stair_end_at(objective, budget + 1), last)
        gain_sum = min((budget - rank) * most, workspace.bucket_sum[bucket])
        ratio = (objective.total_weight + base + gain_sum) / price_at(objective, budget)
        best = max(best, ratio)
    return best


@njit(cache=True, nogil=True)
def _close_in(objective: Objective, bounds: Bounds, best: float, workspace: Workspace) -> Any:
    """Raise the bar by what OPEN buckets surely reach inside; drop those that then cannot win.

    Returns how many gains the OPEN buckets left hold.
    """
    for bucket in range(bounds.num_buckets):
        if workspace.bucket_state[bucket] == OPEN:
            mean = workspace.bucket_sum[bucket] / workspace.bucket_count[bucket]
            best = max(best, _stair_bound(objective, bounds, bucket, mean, workspace))
    bar = best * (1.0 - 2.0 * bounds.margin)
    num_open = 0
    for bucket in range(bounds.num_buckets):
        if workspace.bucket_state[bucket] == OPEN:
            edge = bucket_edge(workspace, bounds.num_gains, objective.max_weight, bucket)
            if _stair_bound(objective, bounds, bucket, edge, workspace) < bar:
                workspace.bucket_state[bucket] = DEAD
            else:
                num_open += workspace.bucket_count[bucket]
    return num_open


@njit(cache=True, nogil=True)
def _walk_bucket(
    objective: Objective, bounds: Bounds, race: Race, bucket: int, workspace: Workspace
) -> Any:
    """Enter every budget of an OPEN bucket."""
    rank, gain_sum = workspace.bucket_rank[bucket], workspace.bucket_base[bucket]
    end = workspace.bucket_slot[bucket]
    begin = end - workspace.bucket_count[bucket]
    for index in range(begin, min(end, begin + bounds.max_budget - rank)):
        gain = workspace.ordered[index]
        gain_sum += gain
        rank += 1
        choice = Choice(rank, gain_sum, gain)
        race = _enter(objective, race, choice, gain >= bounds.significant, bounds.margin)
    return race


@njit(cache=True, nogil=True)
def _run_race(objective: Objective, bounds: Bounds, workspace: Workspace) -> Any:
    """Enter the candidates of all buckets that are not dead, smallest budget first."""
    nothing = Choice(0, 0.0, np.inf)
    race = Race(-1.0, nothing, False, price_at(objective, 0), nothing)
    for bucket in range(bounds.num_buckets):
        state = workspace.bucket_state[bucket]
        if state == CLOSED:
            rank = workspace.bucket_rank[bucket] + workspace.bucket_count[bucket]
            gain_sum = workspace.bucket_base[bucket] + workspace.bucket_sum[bucket]
            cut = bucket_edge(workspace, bounds.num_gains, objective.max_weight, bucket + 1)
            race = _enter(objective, race, Choice(rank, gain_sum, cut), True, bounds.margin)
        elif state == OPEN:
            race = _walk_bucket(objective, bounds, race, bucket, workspace)
    return _settle(objective.total_weight, race, bounds.margin)


@njit(cache=True, nogil=True)
def search_budget(
    objective: Objective, num_gains: int, max_budget: int, workspace: Workspace
) -> Any:
    """The choice of `first_maximum` over workspace.gain[:num_gains], mostly without sorting them.

    max_budget: at most num_gains. Leaves workspace.gain[:num_gains] as it was.
    """
    if num_gains > FEW_GAINS and objective.max_weight > TINY_WEIGHT:
        num_buckets, shift = bucket_shape(num_gains)
        smallest = bucket_gains(workspace, num_gains, objective.max_weight, num_buckets, shift)
        best, gain_sum = _mark_borders(objective, max_budget, num_buckets, workspace)
        margin = (4.0 * num_gains + 16.0) * UNIT_ROUNDOFF
        significant = SIGNIFICANT * (objective.total_weight + gain_sum)
        num_significant = num_buckets if smallest >= significant else num_buckets - 1
        bounds = Bounds(max_budget, num_gains, num_buckets, significant, num_significant, margin)
        _mark_states(objective, bounds, best * (1.0 - 2.0 * margin), workspace)
        num_open = _close_in(objective, bounds, best, workspace)
        if num_open * MIN_SAVED_SHARE <= num_gains:
            if num_open > 0:
                order_buckets(workspace, num_gains, num_buckets)
            race = _run_race(objective, bounds, workspace)
            if not race.contested:
                return race.choice
    order_all(workspace, num_gains, objective.max_weight)
    return first_maximum(objective, workspace.ordered, max_budget, False)
