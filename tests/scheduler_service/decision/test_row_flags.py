from __future__ import annotations

import pytest
from specsched_scheduler.decision import DecisionFlags, Feature, PolicyCode
from specsched_scheduler.decision.row_flags import row_flags
from specsched_scheduler.decision.step import PolicyRule

BOUND, FILL = DecisionFlags.ROWS_BOUND, DecisionFlags.FILL_SIZE


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (PolicyCode.THROUGHPUT, FILL),
        (PolicyCode.RATIO, FILL),
        (PolicyCode.SLO, FILL | BOUND),
        (PolicyCode.FIXED, 0),
        (PolicyCode.THRESHOLD, 0),
        (PolicyCode.OFF, 0),
        (PolicyCode.PYTHON, 0),
    ],
)
def test_only_policies_that_weigh_time_take_rows_that_cost_none(code, expected):
    assert row_flags(PolicyRule(int(code))) == expected
    assert row_flags(PolicyRule(int(code), left_out=int(Feature.FILL))) == expected & ~FILL
