"""What a shadow would have done, from what was published and reported."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from specsched_executor.transport.comparison import hindsight_of

from tests.protos.builders import make_report, make_request, make_rows

VERIFY_MS = np.arange(1.0, 100.0)
REPORT = make_report(7, num_rows=2, num_accepted=2)  # all that was verified: 2 drafts each


def test_open_drafts_are_found_by_slot_wherever_their_row_stands():
    rows = make_rows(6, num_rows=3, max_draft_tokens=3)
    turned = dataclasses.replace(
        rows,
        slot_id=rows.slot_id[::-1],
        confidence=np.array([[1, 1, 0.1], [1, 1, 0.25], [1, 1, 0.5]], dtype=np.float32),
    )
    hindsight = hindsight_of(REPORT, turned, make_request(8), VERIFY_MS)
    assert [hindsight.tokens(budget) for budget in (4, 5, 6, 7)] == [6, 6.5, 6.75, 6.75]


def test_confidences_of_another_generation_are_of_no_use():
    same = hindsight_of(REPORT, make_rows(6, confidence=0.5), None, VERIFY_MS)
    other = hindsight_of(REPORT, make_rows(6, confidence=0.5, generation=2), None, VERIFY_MS)
    assert same.tokens(8) == pytest.approx(6 + 2 * (0.5 + 0.25))
    assert other.tokens(8) == 6


def test_weights_rank_the_drafts_of_the_requests_they_are_of():
    request = make_request(8)
    weighted = dataclasses.replace(request, weight=np.array([0.1, 1, 1], dtype=np.float32))
    rows = make_rows(6, num_rows=2, max_draft_tokens=3)
    rows.confidence[:] = [[1, 1, 0.9], [1, 1, 0.5]]
    assert hindsight_of(REPORT, rows, request, VERIFY_MS).tokens(5) == pytest.approx(6.9)
    assert hindsight_of(REPORT, rows, weighted, VERIFY_MS).tokens(3) == pytest.approx(4.5)
