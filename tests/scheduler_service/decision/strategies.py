"""Random steps: few distinct values, so that ties abound, beside arbitrary ones."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from tests.scheduler_service.decision.oracle import Row, Step

COARSE = st.sampled_from([0.0, 0.25, 0.5, 0.7, 0.9, 1.0])
TINY = st.sampled_from([1e-9, 1e-30, 1e-300, 5e-324])
BROKEN = st.sampled_from([math.nan, math.inf, -math.inf, -0.1, 1.5, -0.0])
MS = st.one_of(st.sampled_from([1.0, 1.0, 2.0, 2.5, 10.0]), st.floats(0.01, 100.0))


def confidences(k: int, *, any_value: bool) -> st.SearchStrategy[list[float]]:
    """k values of one row."""
    fine = st.floats(0.0, 1.0, width=32)
    value = st.one_of(COARSE, fine, TINY, BROKEN) if any_value else st.one_of(COARSE, fine)
    return st.lists(value, min_size=k, max_size=k)


@st.composite
def rows(draw: st.DrawFn, k: int) -> Row:
    """One request."""
    return Row(
        confidence=draw(st.one_of(st.none(), confidences(k, any_value=draw(st.booleans())))),
        num_draft_tokens=draw(st.one_of(st.just(k), st.integers(0, k))),
        samples=draw(st.sampled_from([True, True, True, False])),
        weight=draw(st.sampled_from([1.0, 1.0, 1.0, 0.5, 2.0, 3.0, 0.0])),
        context_tokens=draw(st.sampled_from([0, 100, 8192])),
    )


@st.composite
def profiles(draw: st.DrawFn) -> tuple[dict[int, list[float]], int]:
    """(verify samples, capture limit); some are too small to be a model."""
    sizes = draw(st.lists(st.integers(1, 96), min_size=0, max_size=12, unique=True))
    samples = st.lists(MS, min_size=1, max_size=3)
    return {size: draw(samples) for size in sizes}, draw(st.sampled_from([0, 16, 48, 96]))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """A whole step of up to 12 requests."""
    k = draw(st.integers(1, 6))
    verify, limit = draw(profiles())
    total = draw(st.integers(0, 40))
    draft_sizes = draw(st.lists(st.integers(1, 16), max_size=3, unique=True))
    return Step(
        max_draft_tokens=k,
        rows=draw(st.lists(rows(k), max_size=12)),
        num_other_tokens=total,
        num_prefill_tokens=draw(st.integers(0, total)),
        max_budget=draw(st.one_of(st.none(), st.integers(0, 40))),
        verify=verify,
        capture_limit=limit,
        draft={size: [draw(MS)] for size in draft_sizes},
        ms_per_token=draw(st.sampled_from([0.0, 1e-4])),
        profiled=draw(st.sampled_from([0.0, 1000.0])),
    )
