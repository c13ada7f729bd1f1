"""Times of requests as their clients see them."""

from __future__ import annotations

import pytest
from specsched_executor.core import GenerationRequest, SamplingParams, TokenDelta
from specsched_executor.telemetry import RequestMeter
from specsched_executor.telemetry import requests as module


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def request(num_outputs: int = 1) -> GenerationRequest:
    return GenerationRequest("r", (1, 2, 3), SamplingParams(n=num_outputs))


def delta(num_tokens: int, num_so_far: int, reason: str | None = None, index: int = 0):
    return TokenDelta(
        "r",
        (7,) * num_tokens,
        reason,
        num_prompt_tokens=3,
        num_output_tokens=num_so_far,
        index=index,
    )


def test_first_token_rate_and_latency(clock):
    meter = RequestMeter()
    with meter.request(request()) as times:
        clock[0] += 0.2
        times.receive(delta(3, 3))  # a step brought three at once
        clock[0] += 0.5
        times.receive(delta(2, 5))
        clock[0] += 0.5
        times.receive(delta(0, 5, "stop"))
    assert meter.first_token_s.sum == pytest.approx(0.2)
    assert meter.latency_s.sum == pytest.approx(1.2)
    # Two tokens came after the first ones, in the second until the end.
    assert meter.per_token_s.sum == pytest.approx(0.5)
    assert meter.num_prompt_tokens == 3
    assert meter.num_finished == {"stop": 1, "abort": 0}


def test_an_output_of_one_delta_has_no_time_between_tokens(clock):
    meter = RequestMeter()
    with meter.request(request()) as times:
        times.receive(delta(4, 4, "length"))
    assert sum(meter.per_token_s.counts) == 0
    assert sum(meter.first_token_s.counts) == 1


def test_outputs_count_one_by_one_and_the_prompt_once(clock):
    meter = RequestMeter()
    with meter.request(request(3)) as times:
        for index in range(2):
            times.receive(delta(1, 1, index=index))
            times.receive(delta(1, 2, "length", index=index))
    assert sum(meter.first_token_s.counts) == 2
    assert meter.num_prompt_tokens == 3
    assert meter.num_finished == {"length": 2, "abort": 1}


def test_a_client_that_leaves_aborts(clock):
    meter = RequestMeter()
    with meter.request(request()) as times:
        times.receive(delta(1, 1))
    assert meter.num_finished["abort"] == 1
