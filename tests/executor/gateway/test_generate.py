"""Generate and Abort over a real gRPC connection."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import grpc.aio
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from specsched_executor.gateway import Gateway

from tests.executor.gateway.fakes import FakeEngine, eventually, serving


def generate_request(request_id: str = "a", **fields: Any) -> pb.GenerateRequest:
    fields.setdefault("tokenized", pb.TokenizedInput(input_ids=[3, 4]))
    return pb.GenerateRequest(request_id=request_id, **fields)


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return caught.value.code(), caught.value.details() or ""


async def test_stream_yields_increments_then_the_complete_output(
    engine: FakeEngine, stub: Any
) -> None:
    call = stub.Generate(generate_request(stream=True))
    await engine.received("a")
    engine.emit("a", [5], num_prompt_tokens=2, num_output_tokens=1)
    first = (await call.read()).chunk
    assert (list(first.token_ids), first.prompt_tokens, first.completion_tokens) == ([5], 2, 1)
    engine.emit(
        "a",
        [6, 7],
        finish_reason="stop",
        matched_stop=7,
        num_prompt_tokens=2,
        num_output_tokens=3,
        num_draft_tokens=4,
        num_accepted_tokens=1,
    )
    assert list((await call.read()).chunk.token_ids) == [6, 7]
    complete = (await call.read()).complete
    assert list(complete.output_ids) == [5, 6, 7]
    assert (complete.finish_reason, complete.matched_token_id) == ("stop", 7)
    assert (complete.prompt_tokens, complete.completion_tokens) == (2, 3)
    assert (complete.spec_draft_tokens, complete.spec_accepted_tokens) == (4, 1)
    assert await call.read() == grpc.aio.EOF


async def test_without_stream_only_the_complete_output_is_sent(
    engine: FakeEngine, stub: Any
) -> None:
    call = stub.Generate(generate_request())
    await engine.received("a")
    engine.emit("a", [5])
    engine.emit("a", [6], finish_reason="stop", matched_stop="bye")
    responses = [response async for response in call]
    assert [list(each.complete.output_ids) for each in responses] == [[5, 6]]
    assert responses[0].complete.matched_stop_str == "bye"


async def test_text_prompts_are_tokenized(engine: FakeEngine, stub: Any) -> None:
    call = stub.Generate(pb.GenerateRequest(request_id="t", text="hello world"))
    assert (await engine.received("t")).prompt_token_ids == (3, 4)
    call.cancel()


async def test_a_reader_that_sleeps_gets_merged_deltas_and_holds_nobody(
    engine: FakeEngine, stub: Any
) -> None:
    call = stub.Generate(generate_request(stream=True))
    await engine.received("a")
    # Far more messages than any flow-control window holds, were each delta sent alone.
    num_deltas = 200_000
    pushing = threading.Thread(target=lambda: [engine.emit("a", [5]) for _ in range(num_deltas)])
    pushing.start()
    await asyncio.to_thread(pushing.join)
    engine.emit("a", [], finish_reason="length")
    responses = [response async for response in call]
    chunks = [each.chunk for each in responses if each.HasField("chunk")]
    assert sum(len(chunk.token_ids) for chunk in chunks) == num_deltas
    assert len(chunks) < num_deltas / 10
    assert len(responses[-1].complete.output_ids) == num_deltas


async def test_cancelling_the_call_aborts_the_request(engine: FakeEngine, stub: Any) -> None:
    call = stub.Generate(generate_request(stream=True))
    await engine.received("a")
    call.cancel()
    await eventually(lambda: engine.aborted == ["a"])
    # The id is free again.
    again = stub.Generate(generate_request())
    await eventually(lambda: len(engine.requests) == 1)
    again.cancel()


async def test_a_vanished_client_aborts_the_request(engine: FakeEngine, gateway: Gateway) -> None:
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}")
    call = vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate(generate_request(stream=True))
    await engine.received("a")
    await channel.close()
    await eventually(lambda: engine.aborted == ["a"])
    assert call.done()


async def test_finished_requests_are_not_aborted(engine: FakeEngine, stub: Any) -> None:
    call = stub.Generate(generate_request())
    await engine.received("a")
    engine.emit("a", [5], finish_reason="length")
    assert [response async for response in call]
    await stub.HealthCheck(pb.HealthCheckRequest())
    assert engine.aborted == []


async def test_abort_ends_the_stream_with_abort(engine: FakeEngine, stub: Any) -> None:
    call = stub.Generate(generate_request(stream=True))
    await engine.received("a")
    await stub.Abort(pb.AbortRequest(request_ids=["a", "never-seen"]))
    assert [each.complete.finish_reason async for each in call] == ["abort"]
    assert engine.aborted == ["a"]


async def test_engine_errors_become_internal_with_their_reason(
    engine: FakeEngine, stub: Any
) -> None:
    call = stub.Generate(generate_request(stream=True))
    await engine.received("a")
    engine.emit("a", [], finish_reason="error", error="logits of this request are NaN")
    assert await failure(call) == (grpc.StatusCode.INTERNAL, "logits of this request are NaN")


async def test_refusals_of_the_engine_are_invalid_arguments(engine: FakeEngine, stub: Any) -> None:
    engine.refusal = "max_tokens = 0; accepted: at least 1"
    code, details = await failure(stub.Generate(generate_request()))
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, engine.refusal)


async def test_an_engine_that_stopped_is_not_there_for_now(engine: FakeEngine, stub: Any) -> None:
    engine.has_stopped = True
    status = await failure(stub.Generate(generate_request()))
    assert status == (grpc.StatusCode.UNAVAILABLE, "the engine has stopped")


async def test_an_open_request_id_is_refused(engine: FakeEngine, stub: Any) -> None:
    first = stub.Generate(generate_request())
    await engine.received("a")
    code, details = await failure(stub.Generate(generate_request()))
    assert code == grpc.StatusCode.ALREADY_EXISTS
    assert "'a'" in details
    assert engine.aborted == []
    first.cancel()


async def test_more_requests_than_configured_are_refused(engine: FakeEngine) -> None:
    async with (
        serving(engine, max_open_requests=1) as gateway,
        grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel,
    ):
        stub: Any = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        first = stub.Generate(generate_request("a"))
        await engine.received("a")
        code, _ = await failure(stub.Generate(generate_request("b")))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "b" not in engine.requests
        first.cancel()


async def test_an_unforeseen_exception_says_nothing_of_the_inside(
    engine: FakeEngine, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(*_: object) -> None:
        raise LookupError("row 17 of the secret table")

    monkeypatch.setattr(engine, "submit", submit)
    code, details = await failure(stub.Generate(generate_request()))
    assert code == grpc.StatusCode.INTERNAL
    assert "secret" not in details


async def test_messages_are_bounded(engine: FakeEngine) -> None:
    async with (
        serving(engine, max_message_bytes=4096) as gateway,
        grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel,
    ):
        stub: Any = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        huge = pb.GenerateRequest(request_id="huge", text="hello " * 4096)
        code, _ = await failure(stub.Generate(huge))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not engine.requests


async def test_shutting_down_refuses_new_requests_and_lets_open_ones_finish(
    engine: FakeEngine, gateway: Gateway, stub: Any
) -> None:
    call = stub.Generate(generate_request("open"))
    await engine.received("open")
    await gateway.set_serving("it is draining")
    code, details = await failure(stub.Generate(generate_request("new")))
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "draining" in details
    engine.emit("open", [5], finish_reason="stop")
    assert [list(each.complete.output_ids) async for each in call] == [[5]]
