"""The budget of a step whose rows run in a captured size."""

import pytest
from specsched_executor.engine.filling import budget_of_size

SIZES = (64, 128, 160, 256)


@pytest.mark.parametrize(
    ("budget", "others", "planned", "expected"),
    [
        (100, 20, 28, 108),  # others ended: their rows take drafts, the size stays
        (100, 28, 28, 100),  # as planned, up to the end of the size
        (90, 28, 28, 100),  # padding, planned or not
        (100, 40, 28, 88),  # a few more rows came: as many drafts fewer
        (100, 44, 28, 116),  # half of the way into the next size: use it
        (100, 90, 28, 70),  # a prompt of 62 tokens, past one size and a little into another
        (100, 75, 60, 85),  # planned into a size, it stays there
        (100, 61, 58, 99),
        (10, 150, 118, 10),  # no drafts would be left
        (100, 170, 28, 100),  # runs eagerly
        (100, 40, None, 120),  # nobody counted
        (0, 64, 64, 0),
    ],
)
def test_the_captured_size_that_the_plan_chose_is_used_as_far_as_that_goes(
    budget, others, planned, expected
):
    assert budget_of_size(budget, others, planned, SIZES) == expected
