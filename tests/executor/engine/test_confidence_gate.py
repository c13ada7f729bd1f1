import numpy as np
import pytest
from specsched_executor.engine.confidence_gate import ConfidenceGate, GateError, no_rows
from specsched_executor.engine.planning import PlanFacts, build_plan_request
from specsched_protocol.plan import NO_BUDGET_CAP, ConfidenceRows, FallbackReason

from tests.executor.engine.batches import made_batch
from tests.executor.engine.tiny import ScriptedTransport, SilentTransport, decision

FACTS = PlanFacts(3, 0, 0, 100, 32)


def plan_request(step_id: int, source_step_id: int):
    return build_plan_request(*made_batch(step_id - 1), source_step_id, FACTS)


def one_row(step_id: int) -> ConfidenceRows:
    one = np.ones(1, dtype=np.uint32)
    return ConfidenceRows(step_id, one, one, one, np.full((1, 3), 0.5, dtype=np.float32))


def publish(gate: ConfidenceGate, step_id: int):
    return gate.publish(lambda source: plan_request(step_id, source))


def test_confidences_leave_only_after_the_plan_of_their_step_was_read():
    transport = SilentTransport()
    gate = ConfidenceGate(transport, 12)
    for step_id in range(1, 6):
        gate.read_plan(step_id)
        publish(gate, step_id + 1)
        gate.withhold(one_row(step_id))
    assert [
        (None if rows is None else rows.source_step_id, request.step_id, request.source_step_id)
        for rows, request in transport.published
    ] == [(None, 2, 0), (1, 3, 1), (2, 4, 2), (3, 5, 3), (4, 6, 4)]


def test_a_request_for_the_step_being_formed_is_a_bug():
    gate = ConfidenceGate(SilentTransport(), 12)
    gate.read_plan(4)
    with pytest.raises(GateError, match="step 4"):
        publish(gate, 4)


def test_confidences_that_are_too_new_are_a_bug():
    transport = SilentTransport()
    gate = ConfidenceGate(transport, 12)
    gate.read_plan(4)
    gate.withhold(one_row(4))
    with pytest.raises(GateError, match="confidences of step 4 must not plan step 5"):
        publish(gate, 5)
    assert transport.published == []


def test_rows_leave_once():
    transport = SilentTransport()
    gate = ConfidenceGate(transport, 12)
    gate.withhold(one_row(1))
    gate.read_plan(2)
    publish(gate, 3)
    gate.read_plan(3)
    publish(gate, 4)
    assert [rows is None for rows, _ in transport.published] == [False, True]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"source_step_id": 3}, FallbackReason.STALE_SOURCE),
        ({"source_step_id": 4}, FallbackReason.STALE_SOURCE),
        ({"source_step_id": 1}, None),
        ({"step_id": 3}, FallbackReason.LATE),
        ({"budget": 13}, FallbackReason.IMPOSSIBLE),
        ({"budget": -1}, FallbackReason.IMPOSSIBLE),
        ({"budget": NO_BUDGET_CAP}, FallbackReason.IMPOSSIBLE),
        ({"max_verify_len": -1}, FallbackReason.IMPOSSIBLE),
        ({"next_draft_tokens": -1}, FallbackReason.IMPOSSIBLE),
    ],
)
def test_decisions_are_checked_again(changes, reason):
    answer = decision(plan_request(4, 2), **({"budget": 12} | changes))
    transport = ScriptedTransport(None)
    transport.decisions[4] = answer
    outcome = ConfidenceGate(transport, 12).read_plan(4)
    assert outcome == (answer if reason is None else reason)


def test_a_step_without_drafts_has_no_rows_to_publish():
    transport = SilentTransport()
    gate = ConfidenceGate(transport, 12)
    gate.withhold(no_rows(1, 3))
    gate.read_plan(2)
    publish(gate, 3)
    assert transport.published[0][0] is None


def test_no_rows_has_the_width_of_the_table():
    rows = no_rows(3, 7)
    assert rows.confidence.shape == (0, 7)
    assert rows.slot_id.dtype == np.uint32
