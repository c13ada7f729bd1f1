"""What schedulers are told, by the plan requests of real runs and of made-up batches."""

import numpy as np
import pytest
from specsched_executor.drafters import NgramDrafter
from specsched_executor.engine.forecast import DraftForecast
from specsched_executor.engine.planning import PlanFacts, build_plan_request

from tests.executor.engine.batches import NUM_SLOTS, Row, made_batch
from tests.executor.engine.tiny import (
    Driver,
    SilentTransport,
    StochasticDrafter,
    TableTarget,
    config,
    random_table,
)


def plan(*rows: Row, **facts):
    defaults = {
        "next_draft_tokens": 3,
        "num_silent_rows": 0,
        "num_waiting_tokens": 0,
        "max_kv_draft_tokens": 1000,
        "max_num_batched_tokens": 32,
    }
    return build_plan_request(*made_batch(7, *rows), 6, PlanFacts(**(defaults | facts)))


def test_decoding_requests_are_one_anchor_each():
    request = plan(Row(0, cached=9, drafts=3), Row(2, cached=4, drafts=2, weight=2.5))
    assert (request.step_id, request.source_step_id) == (8, 6)
    assert (request.num_other_tokens, request.num_prefill_tokens) == (2, 0)
    assert request.slot_id.tolist() == [0, 2]
    assert request.num_draft_tokens.tolist() == [3, 2]
    assert request.weight.tolist() == [1.0, 2.5]
    assert request.context_tokens.tolist() == [10, 5]
    assert request.samples.tolist() == [True, True]


def test_a_chunked_prefill_goes_on_with_its_next_chunk():
    request = plan(Row(0, cached=9), Row(1, base=20, total=100), max_num_batched_tokens=32)
    assert (request.num_other_tokens, request.num_prefill_tokens) == (32, 31)
    assert request.samples.tolist() == [True, False]
    assert request.max_budget == 0


def test_the_last_row_of_a_final_chunk_is_an_anchor():
    request = plan(Row(0, cached=9), Row(1, base=20, total=25))
    assert (request.num_other_tokens, request.num_prefill_tokens) == (6, 4)
    assert request.samples.tolist() == [True, True]


def test_waiting_requests_fill_the_rows_that_are_left():
    request = plan(Row(0, cached=9), num_waiting_tokens=10)
    assert (request.num_other_tokens, request.num_prefill_tokens) == (11, 10)
    request = plan(Row(0, cached=9), num_waiting_tokens=1000)
    assert (request.num_other_tokens, request.max_budget) == (32, 0)


def test_the_budget_is_capped_by_rows_and_by_kv_room():
    assert plan(Row(0, cached=9)).max_budget == 31
    assert plan(Row(0, cached=9), max_kv_draft_tokens=5).max_budget == 5


@pytest.mark.parametrize(
    ("num_silent_rows", "expected"), [(0, [3, 0, 0]), (1, [3, 3, 0]), (2, [3, 3, 3])]
)
def test_silent_requests_are_expected_to_speak_as_often_as_they_do(num_silent_rows, expected):
    rows = [Row(0, cached=9, drafts=3), Row(1, cached=9), Row(2, cached=9)]
    assert plan(*rows, num_silent_rows=num_silent_rows).num_draft_tokens.tolist() == expected


def test_drafts_are_expected_within_useful_length():
    # 10 tokens of at most 14: one more is committed first, one is the bonus token.
    assert plan(Row(0, cached=9, drafts=3, limit=14)).num_draft_tokens.tolist() == [2]
    assert plan(Row(0, cached=9, drafts=3, limit=11)).num_draft_tokens.tolist() == [0]
    assert plan(Row(0, cached=9, drafts=3), next_draft_tokens=1).num_draft_tokens.tolist() == [1]


def test_drafts_of_a_step_in_flight_are_known_but_for_what_it_commits():
    batch, columns = made_batch(7, Row(0, cached=9, limit=30), Row(1, cached=9, limit=14))
    columns.num_draft_tokens[:2] = 3
    columns.min_in_flight_tokens[:2] = 1
    columns.max_in_flight_tokens[:2] = 4
    facts = PlanFacts(
        next_draft_tokens=3,
        num_silent_rows=0,
        num_waiting_tokens=0,
        max_kv_draft_tokens=1000,
        max_num_batched_tokens=32,
        overlaps=True,
    )
    # 10 tokens, at least 11 when the step is over, then two drafts and the bonus token.
    request = build_plan_request(batch, columns, 6, facts)
    assert request.num_draft_tokens.tolist() == [3, 2]


# ===================== Forecast =====================


def observe(forecast: DraftForecast, *drafts: int) -> None:
    rows = [Row(slot, cached=9, drafts=n) for slot, n in enumerate(drafts)]
    batch, _ = made_batch(7, *rows)
    forecast.observe(batch, np.ones(len(rows), dtype=np.bool_))


def test_a_silent_request_alone_is_expected_to_speak():
    forecast = DraftForecast(NUM_SLOTS)
    observe(forecast, 0)
    assert forecast.num_expected_rows == 1
    for _ in range(20):
        observe(forecast, 0)
    assert forecast.num_expected_rows == 1


def test_requests_that_never_speak_are_not_waited_for():
    forecast = DraftForecast(NUM_SLOTS)
    for _ in range(300):
        observe(forecast, 0, 0, 0)
    assert forecast.num_expected_rows == 0


def test_many_silent_requests_are_counted_by_their_share():
    forecast = DraftForecast(NUM_SLOTS)
    for _ in range(200):
        observe(forecast, *[0] * 8)
        observe(forecast, *[3] * 2, *[0] * 6)
    observe(forecast, *[0] * 8)
    # 2 of 8, then 6 of 6 still silent: 2 in 14.
    assert forecast.num_expected_rows == 1
    assert DraftForecast(NUM_SLOTS).num_expected_rows == 0


# ===================== Real runs =====================


def test_expected_and_actual_drafts_agree_for_a_drafter_that_always_drafts():
    transport = SilentTransport()
    table = random_table(6, 0)
    driver = Driver(
        TableTarget(table), StochasticDrafter(table[0], 3), transport, config(num_kv_blocks=256)
    )
    for seed in range(4):
        driver.submit([1, 2], max_tokens=120, seed=seed)
    driver.run()
    requests = {request.step_id: request for _, request in transport.published}
    made = {rows.source_step_id + 1: rows for rows in transport.drafts}
    middle = [step for step in made if 5 < step < 25]
    assert len(middle) == 19
    for step in middle:
        expected = requests[step].num_draft_tokens.tolist()
        assert expected == made[step].num_draft_tokens.tolist() == [3] * 4


def test_confidences_of_a_published_step_are_never_its_own():
    transport = SilentTransport()
    driver = Driver(TableTarget(random_table(6, 0)), NgramDrafter(3), transport, config())
    for seed in range(8):
        driver.submit([1, 2, 1, 2], max_tokens=30, seed=seed)
    driver.run()
    for rows, request in transport.published:
        assert request.source_step_id == request.step_id - 2
        assert rows is None or rows.source_step_id <= request.step_id - 2
