"""Rows that a plan did not count on, where the plan bounds the rows of its step."""

from __future__ import annotations

import pytest
from specsched_protocol.plan import ROWS_BOUND_FLAG
from specsched_protocol.v1 import plan_pb2

from tests.executor.engine.tiny import (
    Driver,
    ScriptedTransport,
    StochasticDrafter,
    TableTarget,
    config,
    decision,
    random_table,
)

VOCAB_SIZE, K = 8, 3


@pytest.mark.parametrize(("flags", "num_rows"), [(0, 1 + K + 6), (ROWS_BOUND_FLAG, 1 + 6)])
def test_a_prompt_that_came_meanwhile_takes_the_place_of_drafts(flags, num_rows):
    """One request decodes with all its drafts; then a prompt of six tokens is admitted."""
    transport = ScriptedTransport(lambda _, request: decision(request, K, flags=flags))
    driver = Driver(
        TableTarget(random_table(VOCAB_SIZE, seed=1)),
        StochasticDrafter(random_table(VOCAB_SIZE, seed=2)[0], K),
        transport,
        config(),
    )
    driver.submit([1, 2], max_tokens=40, ignore_eos=True, seed=1)
    for _ in range(4):
        driver.loop.step()
    assert driver.target.num_rows[-1] == 1 + K
    # Nobody could tell the plan of the next step about this one.
    driver.submit([1, 2, 3, 4, 5, 6], max_tokens=4, seed=2)
    driver.loop.step()
    assert driver.target.num_rows[-1] == num_rows


def test_the_flag_is_that_of_the_protocol():
    assert ROWS_BOUND_FLAG == 1 << (plan_pb2.DECISION_FLAG_ROWS_BOUND - 1)
