"""Rows that a captured size leaves over take drafts, where the plan wants it."""

from __future__ import annotations

import pytest
from specsched_executor.device import GraphSizes
from specsched_protocol.plan import FILL_SIZE_FLAG
from specsched_protocol.v1 import plan_pb2

from tests.executor.device.tiny import DeviceDriver, DeviceTableDrafter, PaddedTarget
from tests.executor.engine.test_lossless import VOCAB
from tests.executor.engine.tiny import ScriptedTransport, config, decision, random_table

BUDGET = 2
NO_GRAPHS = GraphSizes()
WIDE = GraphSizes(rows=(1, 8), prompt_rows=(8,), draft_requests=(1,), draft_lens=(3,))
EXACT = GraphSizes(rows=(1, 2, 3, 4), prompt_rows=(8,), draft_requests=(1,), draft_lens=(3,))


def verified_lens(flags: int, graphs: GraphSizes, cap: int, **options) -> set[int]:
    """How many drafts steps verify that have three of them and a budget of two."""
    table = random_table(VOCAB, 0)
    transport = ScriptedTransport(
        lambda _, request: decision(request, BUDGET, flags=flags, max_verify_len=cap)
    )
    drafter = DeviceTableDrafter(table[1], 4, 3)
    driver = DeviceDriver(PaddedTarget(table), drafter, transport, config(), graphs=graphs)
    result = driver.submit([0, 1, 2], temperature=0.0, max_tokens=40, **options)
    driver.run()
    assert len(result.token_ids) == 40
    planned = transport.reports[4:-4]  # the first have no plan, the last fewer drafts
    return {int(report.num_verified.sum()) for report in planned}


@pytest.mark.parametrize(
    ("flags", "graphs", "cap", "expected"),
    [
        (FILL_SIZE_FLAG, WIDE, 3, 3),
        (FILL_SIZE_FLAG, WIDE, 2, 2),
        (FILL_SIZE_FLAG, EXACT, 3, BUDGET),
        (FILL_SIZE_FLAG, NO_GRAPHS, 3, BUDGET),
        (0, WIDE, 3, BUDGET),
    ],
)
def test_a_size_is_filled_where_one_is_captured_and_the_plan_wants_it(flags, graphs, cap, expected):
    assert verified_lens(flags, graphs, cap) == {expected}


def test_a_step_that_runs_eagerly_for_its_logprobs_has_no_rows_to_fill():
    assert verified_lens(FILL_SIZE_FLAG, WIDE, 3, logprobs=1) == {BUDGET}


def test_the_flag_is_that_of_the_protocol():
    assert FILL_SIZE_FLAG == 1 << (plan_pb2.DECISION_FLAG_FILL_SIZE - 1)
