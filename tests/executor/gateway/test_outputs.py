"""Several outputs of a request and log-probabilities, over a real gRPC connection."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from specsched_executor.core import TokenLogprobs

from tests.executor.gateway.fakes import FakeEngine, eventually
from tests.executor.gateway.test_generate import failure, generate_request


async def rest_of(call: Any) -> list[pb.GenerateResponse]:
    responses = []
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses


LOGPROBS = [TokenLogprobs(-0.5 * i, (i, i + 1), (-0.25, -0.5 * i)) for i in range(8)]


async def test_each_output_streams_and_completes_under_its_index(
    engine: FakeEngine, stub: Any
) -> None:
    call = stub.Generate(generate_request(stream=True, sampling_params=pb.SamplingParams(n=2)))
    assert (await engine.received("a")).sampling.n == 2
    engine.emit("a", [5], index=1, num_output_tokens=1)
    first = (await call.read()).chunk
    assert (first.index, list(first.token_ids)) == (1, [5])
    engine.emit("a", [6], index=0, finish_reason="stop", num_output_tokens=1)
    engine.emit("a", [7], index=1, finish_reason="length", num_output_tokens=2)
    rest = await rest_of(call)
    chunks = [(r.chunk.index, list(r.chunk.token_ids)) for r in rest if r.HasField("chunk")]
    assert chunks == [(0, [6]), (1, [7])]
    ends = [r.complete for r in rest if r.HasField("complete")]
    assert [(e.index, e.finish_reason, list(e.output_ids)) for e in ends] == [
        (0, "stop", [6]),
        (1, "length", [5, 7]),
    ]
    assert engine.aborted == []


async def test_an_output_that_fails_ends_the_call_and_aborts_the_others(
    engine: FakeEngine, stub: Any
) -> None:
    call = stub.Generate(generate_request(sampling_params=pb.SamplingParams(n=3)))
    await engine.received("a")
    engine.emit("a", [5], index=0, finish_reason="stop")
    engine.emit("a", [], index=2, finish_reason="error", error="logits are NaN")
    assert await failure(call) == (grpc.StatusCode.INTERNAL, "logits are NaN")
    await eventually(lambda: engine.aborted == ["a"])


async def test_chunks_carry_their_own_logprobs_and_the_first_the_prompts(
    engine: FakeEngine, stub: Any
) -> None:
    params = pb.SamplingParams(logprobs=2, prompt_logprobs=2)
    call = stub.Generate(generate_request(stream=True, sampling_params=params))
    await engine.received("a")
    engine.emit("a", [5], logprobs=(LOGPROBS[5],), prompt_logprobs=(None, LOGPROBS[4]))
    chunk = (await call.read()).chunk
    assert list(chunk.output_logprobs.token_ids) == [5]
    assert list(chunk.output_logprobs.token_logprobs) == [-2.5]
    (top,) = chunk.output_logprobs.top_logprobs
    assert (list(top.token_ids), list(top.values)) == ([5, 6], [-0.25, -2.5])
    prompt = chunk.input_logprobs
    assert list(prompt.token_ids) == [3, 4]
    assert [t.value if t.HasField("value") else None for t in prompt.token_logprobs] == [None, -2.0]
    assert [list(top.token_ids) for top in prompt.top_logprobs] == [[], [4, 5]]
    engine.emit("a", [6], logprobs=(LOGPROBS[6],))
    engine.emit("a", [7], logprobs=(LOGPROBS[7],), finish_reason="stop")
    rest = await rest_of(call)
    chunks = [r.chunk for r in rest if r.HasField("chunk")]
    told = [value for each in chunks for value in each.output_logprobs.token_logprobs]
    assert told == [-3.0, -3.5]
    assert not any(each.HasField("input_logprobs") for each in chunks)
    assert not rest[-1].complete.HasField("output_logprobs")


async def test_without_stream_the_end_carries_all_logprobs(engine: FakeEngine, stub: Any) -> None:
    params = pb.SamplingParams(logprobs=0, prompt_logprobs=0)
    call = stub.Generate(generate_request(sampling_params=params))
    await engine.received("a")
    bare = [TokenLogprobs(each.logprob, (), ()) for each in LOGPROBS]
    engine.emit("a", [5], logprobs=(bare[5],), prompt_logprobs=(None, bare[4]))
    engine.emit("a", [6], logprobs=(bare[6],), finish_reason="stop")
    (complete,) = [response.complete async for response in call]
    assert list(complete.output_logprobs.token_ids) == [5, 6]
    assert list(complete.output_logprobs.token_logprobs) == [-2.5, -3.0]
    assert not complete.output_logprobs.top_logprobs
    assert complete.input_logprobs.token_logprobs[1].value == -2.0


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_said_of_logprobs_that_nobody_asked_for(
    engine: FakeEngine, stub: Any, stream: bool
) -> None:
    call = stub.Generate(generate_request(stream=stream))
    await engine.received("a")
    engine.emit("a", [5], finish_reason="stop")
    for response in [response async for response in call]:
        message = getattr(response, response.WhichOneof("response"))
        assert not message.HasField("output_logprobs")
        assert not message.HasField("input_logprobs")
