"""Both clients against a real gateway, and their errors."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import pytest
import specsched_client
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2
from specsched_client import (
    AsyncClient,
    AsyncSchedulerClient,
    Client,
    Completion,
    ConnectionFailedError,
    DeadlineExceededError,
    FakeTransport,
    InvalidRequestError,
    OverloadedError,
    Sampling,
    SchedulerClient,
    ServerError,
    SpecschedError,
    UnsupportedError,
)
from specsched_client._errors import error_of_status
from specsched_protocol.v1 import plan_pb2, scheduler_pb2
from specsched_scheduler.service import attachments

from tests.executor.gateway.fakes import AnsweringEngine, FakeEngine, eventually, serving_in_thread

NOBODY = "127.0.0.1:1"


def ask_blocking(target: str, prompt: Any, *, stream: bool, **options: Any) -> list[Any]:
    with Client(target) as client:
        if stream:
            return list(client.stream(prompt, **options))
        return [client.generate(prompt, **options)]


def ask_awaiting(target: str, prompt: Any, *, stream: bool, **options: Any) -> list[Any]:
    async def ask() -> list[Any]:
        async with AsyncClient(target) as client:
            if stream:
                return [delta async for delta in client.stream(prompt, **options)]
            return [await client.generate(prompt, **options)]

    return asyncio.run(ask())


both = pytest.mark.parametrize("ask", [ask_blocking, ask_awaiting])
Ask = Callable[..., list[Any]]


@both
def test_text_in_text_out(ask: Ask, target: str, engine: AnsweringEngine) -> None:
    (completion,) = ask(target, "hello <end>", stream=False, sampling=Sampling(max_tokens=9))
    assert isinstance(completion, Completion)
    assert completion.text == "hello world good bye"
    assert completion.finish_reason == "stop"
    assert (completion.num_draft_tokens, completion.num_accepted_tokens) == (4, 3)
    (request,) = engine.requests.values()
    assert (request.prompt_token_ids, request.sampling.max_tokens) == ((3, 7), 9)


@both
def test_streams_add_up_to_the_completion(ask: Ask, target: str) -> None:
    deltas = ask(target, "hello", stream=True)
    completion = deltas[-1].completion
    assert [delta.completion for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert "".join(delta.text for delta in deltas) == completion.text == "hello world good bye"
    assert sum((delta.token_ids for delta in deltas), ()) == completion.token_ids == (3, 4, 5, 6)


@both
def test_conversations_go_through_the_servers_template(
    ask: Ask, target: str, engine: AnsweringEngine
) -> None:
    ask(target, [{"role": "user", "content": "good bye"}], stream=False)
    (request,) = engine.requests.values()
    assert request.prompt_token_ids == (1, 5, 6, 2)


@both
def test_token_ids_in_token_ids_out(ask: Ask, target: str) -> None:
    (completion,) = ask(target, [3, 4], stream=False, sampling=Sampling(max_tokens=2))
    assert (completion.token_ids, completion.text) == ((3, 4), None)
    assert completion.finish_reason == "length"


@both
@pytest.mark.parametrize("stream", [True, False])
def test_no_end_in_time(ask: Ask, stream: bool) -> None:
    engine = FakeEngine()
    with serving_in_thread(engine) as target:
        with pytest.raises(DeadlineExceededError, match="in time"):
            ask(target, [3], stream=stream, timeout_s=0.3)
        asyncio.run(eventually(lambda: len(engine.aborted) == 1))


@both
def test_nobody_there(ask: Ask) -> None:
    with pytest.raises(ConnectionFailedError, match=NOBODY):
        ask(NOBODY, "hello", stream=False, timeout_s=20)


@both
def test_refusals_carry_the_servers_words(ask: Ask, target: str, engine: AnsweringEngine) -> None:
    engine.refusal = "prompt has 99 tokens; accepted: at most 64"
    with pytest.raises(InvalidRequestError, match=r"^prompt has 99 tokens"):
        ask(target, [3], stream=True)


@both
@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan")])
def test_time_limits_that_cannot_be_kept_are_refused(ask: Ask, timeout_s: float) -> None:
    with pytest.raises(InvalidRequestError, match="timeout_s"):
        ask(NOBODY, [3], stream=False, timeout_s=timeout_s)


def test_closing_a_stream_aborts_the_request() -> None:
    engine = FakeEngine()
    with serving_in_thread(engine) as target, Client(target) as client:
        deltas = client.stream([3], request_id="r")
        reading = threading.Thread(target=next, args=(deltas,))
        reading.start()
        asyncio.run(engine.received("r"))
        engine.emit("r", [5])
        reading.join()
        deltas.close()
        asyncio.run(eventually(lambda: engine.aborted == ["r"]))


async def test_cancelling_the_task_aborts_the_request() -> None:
    engine = FakeEngine()
    with serving_in_thread(engine) as target:
        async with AsyncClient(target) as client:
            task = asyncio.create_task(client.generate([3], request_id="r"))
            await engine.received("r")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await eventually(lambda: engine.aborted == ["r"])


def test_abort_by_id() -> None:
    engine = FakeEngine()
    with serving_in_thread(engine) as target, Client(target) as client:
        finished: list[Completion] = []
        asking = threading.Thread(
            target=lambda: finished.append(client.generate([3], request_id="r"))
        )
        asking.start()
        asyncio.run(engine.received("r"))
        client.abort(["r"])
        asking.join()
        assert finished[0].finish_reason == "abort"


async def test_concurrent_prompts_fetch_the_tokenizer_once() -> None:
    fake = FakeTransport({"GetTokenizer": lambda _: [], "Generate": lambda _: []})
    async with AsyncClient(transport=fake.as_async()) as client:
        with pytest.raises(ServerError, match="damaged"):
            await client.tokenizer()
    engine = AnsweringEngine(lambda _: (3,))
    with serving_in_thread(engine) as target:
        async with AsyncClient(target) as client:
            codecs = await asyncio.gather(*(client.tokenizer() for _ in range(5)))
    assert len({id(codec) for codec in codecs}) == 1


def test_facts(target: str) -> None:
    with Client(target) as client:
        assert client.health().healthy
        assert client.model_info().served_model_name == "tiny"
        assert client.server_info().server_type == "vllm-grpc"
        assert client.loads().loads[0].num_running_reqs == 3
        assert client.step_counters().counters.num_steps == 300
        assert not client.schedulers().schedulers


async def test_facts_for_asyncio(target: str) -> None:
    async with AsyncClient(target) as client:
        assert (await client.health()).healthy
        assert (await client.model_info()).vocab_size == 8
        assert (await client.server_info()).max_num_seqs == 4
        assert (await client.loads()).loads[0].num_waiting_reqs == 2
        assert (await client.step_counters()).counters.num_planned_steps == 190
        assert not (await client.schedulers()).schedulers
        await client.abort(["nobody"])


def scheduler_fake() -> FakeTransport:
    def set_policy(request: scheduler_pb2.SetPolicyRequest) -> Sequence[Any]:
        previous = plan_pb2.PolicySpec(name="throughput")
        return [scheduler_pb2.SetPolicyResponse(policy=request.policy, previous_policy=previous)]

    return FakeTransport(
        {
            "GetStatus": lambda _: [scheduler_pb2.GetStatusResponse(version="9")],
            "SetPolicy": set_policy,
            "Plan": lambda _: [plan_pb2.PlanResponse(verify_lens=[1, 2])],
            "WatchDecisions": lambda request: (
                scheduler_pb2.WatchDecisionsResponse(num_requests=n)
                for n in range(request.max_per_second)
            ),
        }
    )


def test_scheduler_calls() -> None:
    fake = scheduler_fake()
    with SchedulerClient("unix:/nowhere", transport=fake) as client:
        assert client.status().version == "9"
        assert client.set_policy("fixed(k=3)").policy.parameters == {"k": 3.0}
        assert list(client.plan(plan_pb2.PlanRequest()).verify_lens) == [1, 2]
        assert [each.num_requests for each in client.watch(max_per_second=3)] == [0, 1, 2]
    assert [name for name, _ in fake.requests] == [
        "GetStatus",
        "SetPolicy",
        "Plan",
        "WatchDecisions",
    ]


async def test_scheduler_calls_for_asyncio() -> None:
    transport = scheduler_fake().as_async()
    async with AsyncSchedulerClient("unix:/nowhere", transport=transport) as client:
        assert (await client.status()).version == "9"
        assert (await client.set_policy("off")).previous_policy.name == "throughput"
        assert list((await client.plan(plan_pb2.PlanRequest())).verify_lens) == [1, 2]
        assert [each.num_requests async for each in client.watch(max_per_second=2)] == [0, 1]


@pytest.mark.parametrize("client", [SchedulerClient, AsyncSchedulerClient])
@pytest.mark.parametrize("name", ["promote", "drain"])
def test_executors_may_take_their_time_to_follow_another(client: type, name: str) -> None:
    waits_s = inspect.signature(getattr(client, name)).parameters["timeout_s"].default
    assert waits_s > attachments._LANE_TIMEOUT_S, "the scheduler tells which of them did not answer"


def test_a_fake_without_a_handler_says_so() -> None:
    with pytest.raises(UnsupportedError, match="HealthCheck"):
        Client(transport=FakeTransport({})).health()


def test_damaged_tokenizers_are_refused() -> None:
    wrong = common_pb2.GetTokenizerChunk(data=b"zip", sha256="0" * 64)
    client = Client(transport=FakeTransport({"GetTokenizer": lambda _: [wrong]}))
    with pytest.raises(ServerError, match="SHA-256"):
        client.generate("hello")


def test_a_server_that_stops_halfway_is_an_error() -> None:
    half = pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=[1]))
    client = Client(transport=FakeTransport({"Generate": lambda _: [half]}))
    with pytest.raises(ServerError, match="before the output was complete"):
        client.generate([1])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequestError),
        (grpc.StatusCode.ALREADY_EXISTS, InvalidRequestError),
        (grpc.StatusCode.UNAVAILABLE, ConnectionFailedError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceededError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, OverloadedError),
        (grpc.StatusCode.UNIMPLEMENTED, UnsupportedError),
        (grpc.StatusCode.INTERNAL, ServerError),
        (grpc.StatusCode.DATA_LOSS, ServerError),
    ],
)
def test_every_status_has_its_error(code: grpc.StatusCode, kind: type[SpecschedError]) -> None:
    assert type(error_of_status(code, "why", "there")) is kind


def test_importing_the_package_loads_no_grpc_and_no_torch() -> None:
    script = (
        "import sys, specsched_client; dir(specsched_client);"
        "print([m for m in ('grpc', 'torch', 'tokenizers', 'rich') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_names_that_are_not_offered_are_not_there() -> None:
    assert set(specsched_client.__all__) <= set(dir(specsched_client))
    with pytest.raises(AttributeError, match="no attribute 'Clients'"):
        _ = specsched_client.Clients
