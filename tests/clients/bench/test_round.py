"""Prompt files, arrivals, and rounds against an executor that answers at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from specsched_client import AsyncClient, ConnectionFailedError, InvalidRequestError, Sampling
from specsched_client._tokenizer import HuggingFaceCodec
from specsched_client.bench.load import ClosedLoop, OpenLoop, arrival_times_s
from specsched_client.bench.prompts import BenchPrompt, encode_prompts, read_prompts
from specsched_client.bench.round import run_round
from specsched_client.bench.sender import Workload
from specsched_executor.core import DeltaSink, GenerationRequest

from tests.executor.gateway.fakes import AnsweringEngine, FakeEngine, WordTokenizer, serving

PROMPTS = ((3, 4), (5,), (6, 3, 4))
ANSWER = (3, 4, 5, 6)


def work(num_requests: int, max_tokens: int = 8) -> Workload:
    return Workload(PROMPTS, num_requests, Sampling(max_tokens=max_tokens), seed=100, timeout_s=20)


class CountingEngine(FakeEngine):
    """Holds requests until as many are open as there should be, then answers them."""

    def __init__(self, num_expected: int) -> None:
        super().__init__()
        self._num_expected = num_expected
        self._open: list[str] = []
        self.most_open = 0

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        super().submit(request, sink)
        self._open.append(request.request_id)
        self.most_open = max(self.most_open, len(self._open))
        if len(self._open) == self._num_expected:
            for request_id in self._open:
                self.emit(request_id, [3], finish_reason="stop", num_output_tokens=1)
            self._open = []


async def test_a_closed_loop_keeps_as_many_requests_open_as_it_says() -> None:
    engine = CountingEngine(3)
    async with serving(engine) as gateway, AsyncClient(f"127.0.0.1:{gateway.port}") as client:
        records = await run_round(client, ClosedLoop(3), work(6))
    assert engine.most_open == 3
    assert [record.index for record in records] == list(range(6))
    assert all(record.error is None for record in records)


async def test_requests_go_out_in_order_with_their_prompts_and_seeds() -> None:
    engine = AnsweringEngine(lambda _: ANSWER)
    ended = []
    async with serving(engine) as gateway, AsyncClient(f"127.0.0.1:{gateway.port}") as client:
        records = await run_round(client, ClosedLoop(1), work(5), lambda: ended.append(1))
    sent = list(engine.requests.values())
    assert [each.prompt_token_ids for each in sent] == [PROMPTS[i % 3] for i in range(5)]
    assert [each.sampling.seed for each in sent] == [100, 101, 102, 103, 104]
    assert len(ended) == 5
    for record in records:
        assert (record.num_output_tokens, record.finish_reason) == (4, "stop")
        assert (record.num_verified_tokens, record.num_accepted_tokens) == (4, 3)
        assert record.start_s <= record.first_token_s <= record.end_s


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    engine = CountingEngine(4)  # answers none before all four are there
    async with serving(engine) as gateway, AsyncClient(f"127.0.0.1:{gateway.port}") as client:
        load = OpenLoop(200.0)
        records = await run_round(client, load, work(4))
    times = arrival_times_s(load, 4, seed=100)
    gaps = [record.start_s - records[0].start_s for record in records]
    assert gaps == pytest.approx(times, abs=1e-6)


async def test_a_refused_request_is_recorded_and_the_round_goes_on() -> None:
    engine = AnsweringEngine(lambda _: ANSWER)
    engine.refusal = "not today"
    async with serving(engine) as gateway, AsyncClient(f"127.0.0.1:{gateway.port}") as client:
        records = await run_round(client, ClosedLoop(2), work(3))
    assert ["not today" in (record.error or "") for record in records] == [True] * 3


async def test_nobody_there_ends_the_round() -> None:
    engine = FakeEngine()
    async with serving(engine) as gateway:
        port = gateway.port
    async with AsyncClient(f"127.0.0.1:{port}") as client:
        with pytest.raises(ConnectionFailedError):
            async with asyncio.timeout(60):
                await run_round(client, ClosedLoop(2), work(4))


def test_arrivals_are_poisson_and_repeatable() -> None:
    times = arrival_times_s(OpenLoop(50.0), 20_000, seed=3)
    assert times == arrival_times_s(OpenLoop(50.0), 20_000, seed=3)
    assert times != arrival_times_s(OpenLoop(50.0), 20_000, seed=4)
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(400, rel=0.05)
    per_second = Counter(int(time) for time in times if time < 390)
    counts = [per_second[second] for second in range(390)]
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / len(counts)
    assert variance / mean == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("load", ["ClosedLoop(0)", "OpenLoop(0.0)", "OpenLoop(float('inf'))"])
def test_impossible_loads_are_refused(load: str) -> None:
    with pytest.raises(InvalidRequestError, match="accepted"):
        eval(load)


def test_prompt_files_hold_turns_or_text(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"turns": ["first", "second"], "id": 3}\n\n{"prompt": "plain"}\n')
    assert read_prompts(file) == [BenchPrompt("first", True), BenchPrompt("plain", False)]


async def test_a_turn_goes_through_the_chat_template() -> None:
    async with (
        serving(FakeEngine()) as gateway,
        AsyncClient(f"127.0.0.1:{gateway.port}") as client,
    ):
        codec = await client.tokenizer()
    prompts = [BenchPrompt("hello", True), BenchPrompt("hello", False)]
    # <user> hello <assistant>; hello
    assert encode_prompts(prompts, codec) == [[1, 3, 2], [3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it holds none; accepted"),
        ('{"prompt": "a"}\n{"turns": []}\n', "line 2: .*accepted: one JSON object"),
        ('{"turns": [3]}', "line 1: .*accepted"),
        ('{"turns": ["a"], \n', "line 1: .*accepted"),
        ('{"prompt": ""}', "line 1: .*accepted"),
        ('"text"', "line 1: .*accepted"),
    ],
)
def test_bad_prompt_files_are_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(InvalidRequestError, match=message):
        read_prompts(file)


def test_a_prompt_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "absent.jsonl"
    with pytest.raises(InvalidRequestError) as refused:
        read_prompts(path)
    assert str(refused.value) == f"prompts {path}: No such file or directory"


def test_turns_for_a_model_without_a_template_are_named_by_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "hello"}\n\n{"turns": ["hello"]}\n')
    codec = HuggingFaceCodec({**WordTokenizer().files(), "tokenizer_config.json": b"{}"})
    with pytest.raises(InvalidRequestError, match=r'jsonl, line 3: .*template.*\{"prompt": TEXT\}'):
        encode_prompts(read_prompts(file), codec)
