"""Sinks that are passed by get what those that are called get, whatever ends or interrupts them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from specsched_executor.batched_sink import BatchedSink
from specsched_executor.core import TokenDelta
from specsched_executor.drafters import NgramDrafter
from specsched_executor.engine import slot_columns
from specsched_executor.progress import Progress, merged

from tests.executor.device.tiny import DeviceDriver, PaddedTarget
from tests.executor.engine.tiny import (
    Driver,
    Result,
    ScriptedTransport,
    TableTarget,
    config,
    random_table,
)

VOCAB = 6
EOS = 5
MAX_STOP_TOKENS = 2
MANY_IDS = (2, 4)
"""With the end id more than are looked for in the tokens of all requests at once."""


class Letters:
    """Token 0 is "a", and so on."""

    def decode(self, token_ids) -> str:
        return "".join(chr(ord("a") + token_id) for token_id in token_ids)


class Taker:
    """Passes what it takes on to the results as deltas, and then what it was to hold."""

    def __init__(self) -> None:
        self.results: list[BatchedResult] = []
        self.held: list[tuple[BatchedResult, TokenDelta]] = []

    def result(self) -> BatchedResult:
        self.results.append(BatchedResult(key=len(self.results), taker=self))
        return self.results[-1]

    def take(self, progress: Progress) -> None:
        for key, index, token_ids, num_verified, num_accepted in progress.rows():
            assert token_ids
            delta = TokenDelta("", tuple(token_ids), index=index)
            delta.num_draft_tokens, delta.num_accepted_tokens = num_verified, num_accepted
            Result.__call__(self.results[key], delta)
        self.flush()

    def flush(self) -> None:
        for result, delta in self.held:
            Result.__call__(result, delta)
        self.held.clear()


@dataclass(eq=False)
class BatchedResult(Result, BatchedSink):
    """A Result that is only called at its end, and told it by its taker."""

    key: int = 0
    taker: Taker | None = None

    def __call__(self, delta: TokenDelta) -> None:
        assert delta.finish_reason is not None
        self.taker.held.append((self, delta))


SAMPLING = (
    {"max_tokens": 30, "ignore_eos": True},
    {"max_tokens": 9},
    {"stop_token_ids": (3,), "ignore_eos": True},
    {"stop_token_ids": MANY_IDS},
    {"stop_token_ids": (3,), "min_tokens": 12, "max_tokens": 14},
    {"stop": ("d", "cc"), "ignore_eos": True},
    {"temperature": 0.0, "max_tokens": 40},
    {"max_tokens": 1},
)


def steps(sizes):
    return Driver(
        TableTarget(random_table(VOCAB, 3), max_context_tokens=64, eos=(EOS,)),
        NgramDrafter(3),
        ScriptedTransport(lambda rows, request: int(request.num_draft_tokens.sum())),
        sizes,
        detokenizer=Letters(),
    )


def overlapping_steps(sizes):
    return DeviceDriver(
        PaddedTarget(random_table(VOCAB, 3), max_context_tokens=64, eos=(EOS,)),
        NgramDrafter(3),
        ScriptedTransport(lambda rows, request: int(request.num_draft_tokens.sum())),
        sizes,
        detokenizer=Letters(),
    )


def outputs(make, sinks, **sizes) -> list[tuple]:
    driver = make(config(**sizes))
    results = []
    for seed in range(3 * len(SAMPLING)):
        sampling = {"max_tokens": 40, "seed": seed} | SAMPLING[seed % len(SAMPLING)]
        results.append(driver.submit([seed % VOCAB, 1, 2, 1], sink=next(sinks), **sampling))
    driver.run()
    assert len(driver.ended) == len(results)
    if sizes:
        assert driver.loop.stats().num_preemptions > 0
    return [
        (
            result.token_ids,
            result.finish_reason,
            result.last.matched_stop,
            result.last.num_output_tokens,
            result.last.num_draft_tokens,
            result.last.num_accepted_tokens,
        )
        for result in results
    ]


def plain():
    while True:
        yield Result()


def batched(num_takers: int):
    takers = [Taker() for _ in range(num_takers)]
    while True:
        for taker in takers:
            yield taker.result()


@pytest.mark.parametrize("make", [steps, overlapping_steps])
@pytest.mark.parametrize("num_takers", [1, 3])
@pytest.mark.parametrize("sizes", [{}, {"num_kv_blocks": 17}], ids=["room", "preemptions"])
def test_the_same_is_told_in_one_call_and_in_many(make, num_takers, sizes, monkeypatch):
    monkeypatch.setattr(slot_columns, "_MAX_STOP_TOKENS", MAX_STOP_TOKENS)
    expected = outputs(make, plain(), **sizes)
    assert outputs(make, batched(num_takers), **sizes) == expected
    assert {reason for _, reason, *_ in expected} == {"stop", "length"}
    assert {matched for _, _, matched, *_ in expected} >= {2, 3, "d"}
    for token_ids, _, _, num_output_tokens, num_verified, num_accepted in expected:
        assert num_output_tokens == len(token_ids)
        assert num_verified >= num_accepted


def test_an_aborted_output_has_been_told_all_its_tokens():
    driver, taker = steps(config()), Taker()
    first, second = (
        driver.submit([1, 2], sink=taker.result(), max_tokens=50, ignore_eos=True, seed=seed)
        for seed in range(2)
    )
    for _ in range(6):
        driver.loop.step()
    driver.loop.abort(driver.active[0])
    assert first.finish_reason == "abort"
    assert first.last.num_output_tokens == len(first.token_ids) > 5
    driver.run()
    assert len(second.token_ids) == 50


def progress(*rows: tuple[int, int, list[int], int, int]) -> Progress:
    numbers = [[key, index, len(new), *counts] for key, index, new, *counts in rows]
    token_ids = [token for _, _, new, *_ in rows for token in new]
    columns = np.array(numbers, dtype=np.int64).reshape(-1, 5).T
    return Progress(columns, np.array(token_ids, dtype=np.int32))


def test_steps_merge_by_output_in_order():
    steps = (
        progress((7, 0, [1, 2], 3, 1), (4, 1, [3], 0, 0), (7, 1, [4], 1, 0)),
        progress((4, 1, [5, 6, 7], 4, 2), (7, 0, [8], 5, 1)),
    )
    assert sorted(merged(steps).rows()) == [
        (4, 1, [3, 5, 6, 7], 4, 2),
        (7, 0, [1, 2, 8], 5, 1),
        (7, 1, [4], 1, 0),
    ]


def test_steps_split_where_outputs_begin():
    rows = [(7, 0, [1, 2], 3, 1), (4, 1, [3], 0, 0), (7, 1, [4, 5, 6], 2, 1), (2, 0, [7], 0, 0)]
    parts = progress(*rows).split([0, 1, 3])
    assert [list(part.rows()) for part in parts] == [rows[:1], rows[1:3], rows[3:]]
    (whole,) = progress(*rows).split([0])
    assert list(whole.rows()) == rows


def test_part_of_a_step_is_the_same_after_it_was_sent():
    rows = [(7, 0, [1, 2], 3, 1), (4, 1, [3], 0, 0), (2, 0, [7], 5, 2)]
    part = progress(*rows).split([0, 1])[1]
    assert list(Progress.unpacked(*part.packed()).rows()) == rows[1:]
