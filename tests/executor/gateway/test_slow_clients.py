"""Clients that read slowly, or vanish, before a real engine: nobody else notices."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc.aio
import pytest
import torch
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from specsched_executor.drafters import NgramDrafter
from specsched_executor.engine import Engine
from specsched_executor.gateway import Gateway

from tests.executor.engine.tiny import SilentTransport, TableTarget, config, random_table
from tests.executor.gateway.fakes import eventually, serving

VOCAB = 8
LONG = 30_000
"""Output tokens of a request whose client does not read: far more than a window holds."""
MAX_SEQS = 4
NARROW = [
    # So that a stream that is not read fills its window soon.
    ("grpc.http2.lookahead_bytes", 1),
    ("grpc.http2.bdp_probe", 0),
]


CLIENT = f"""
import sys, grpc
from smg_grpc_proto import vllm_engine_pb2 as pb, vllm_engine_pb2_grpc
stub = vllm_engine_pb2_grpc.VllmEngineStub(grpc.insecure_channel("127.0.0.1:" + sys.argv[1]))
calls = [
    stub.Generate(
        pb.GenerateRequest(
            request_id=f"v{{i}}",
            tokenized=pb.TokenizedInput(input_ids=[1, 2]),
            sampling_params=pb.SamplingParams(max_tokens={LONG}, ignore_eos=True),
            stream=True,
        )
    )
    for i in range({MAX_SEQS})
]
for call in calls:
    next(call)
print("running", flush=True)
sys.stdin.read()
"""
"""A client that takes every slot there is."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def real_engine() -> Iterator[Engine]:
    target = TableTarget(random_table(VOCAB, 0), max_context_tokens=2 * LONG)
    sizes = config(num_kv_blocks=40_000, max_num_seqs=MAX_SEQS)
    engine = Engine(target, NgramDrafter(3), SilentTransport(), sizes)
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture
async def real_gateway(real_engine: Engine) -> AsyncIterator[Gateway]:
    async with serving(real_engine) as gateway:
        yield gateway


def request(request_id: str, max_tokens: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=[1, 2]),
        sampling_params=pb.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
        stream=True,
    )


def connect(gateway: Gateway, options: Any = ()) -> tuple[grpc.aio.Channel, Any]:
    channel = grpc.aio.insecure_channel(
        f"127.0.0.1:{gateway.port}", options=[("grpc.use_local_subchannel_pool", 1), *options]
    )
    return channel, vllm_engine_pb2_grpc.VllmEngineStub(channel)


class Stream:
    """A call that is read when the test says so."""

    def __init__(self, stub: Any, request_id: str, max_tokens: int) -> None:
        self.call = stub.Generate(request(request_id, max_tokens))
        self._responses = aiter(self.call)

    async def begin(self) -> None:
        """Read one response: the request runs."""
        await anext(self._responses)

    async def end(self) -> pb.GenerateComplete:
        """Read to the end."""
        return [each async for each in self._responses][-1].complete

    async def output(self) -> list[int]:
        return list((await self.end()).output_ids)


async def alone(stub: Any, max_tokens: int) -> list[int]:
    return await Stream(stub, "alone", max_tokens).output()


async def test_clients_that_do_not_read_neither_stop_others_nor_the_engine(
    real_engine: Engine, real_gateway: Gateway
) -> None:
    reader_channel, reader = connect(real_gateway)
    sleeper_channel, sleeper = connect(real_gateway, NARROW)
    async with reader_channel, sleeper_channel:
        expected = await alone(reader, 50)
        sleeping = [Stream(sleeper, f"s{i}", 1000) for i in range(MAX_SEQS)]
        for call in sleeping:
            await call.begin()  # all slots are theirs now, and from here on nobody reads
        for index in range(3):
            assert await Stream(reader, f"r{index}", 50).output() == expected
        # The engine ends their requests, though not one of them is read.
        await eventually(lambda: real_engine.stats().num_running_requests == 0)
        outputs = [await call.output() for call in sleeping]
        assert {len(output) for output in outputs} == {1000}
        assert all(output == outputs[0] and output[:50] == expected for output in outputs)


async def test_clients_that_vanish_give_their_slots_and_blocks_back(
    real_engine: Engine, real_gateway: Gateway
) -> None:
    reader_channel, reader = connect(real_gateway)
    async with reader_channel:
        expected = await alone(reader, 50)
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            CLIENT,
            str(real_gateway.port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert client.stdout is not None
        assert await client.stdout.readline() == b"running\n"
        late = Stream(reader, "late", 50)
        await eventually(lambda: real_engine.stats().num_waiting_requests == 1)
        client.kill()
        assert await late.output() == expected
        await client.communicate()
        await eventually(lambda: real_engine.stats().num_used_tokens == 0)
        assert real_engine.stats().num_running_requests == 0


async def test_a_client_that_comes_back_may_use_its_id_at_once(
    real_engine: Engine, real_gateway: Gateway
) -> None:
    channel, stub = connect(real_gateway)
    async with channel:
        expected = await alone(stub, 20)
        for _ in range(20):
            call = Stream(stub, "same", LONG)
            await call.begin()
            call.call.cancel()
            # The gateway learns of it a moment later; the engine must not add a step to that.
            await eventually(lambda: real_gateway.num_open == 0)
            assert await Stream(stub, "same", 20).output() == expected


@pytest.mark.parametrize("grace_s", [0.0, 0.2])
async def test_requests_left_at_the_deadline_end_with_what_they_have(
    real_engine: Engine, real_gateway: Gateway, grace_s: float
) -> None:
    channel, stub = connect(real_gateway)
    async with channel:
        call = Stream(stub, "long", LONG)
        await call.begin()
        stopping = asyncio.create_task(real_gateway.stop(grace_s))
        end = await call.end()
        assert end.finish_reason == "abort"
        assert 0 < len(end.output_ids) < LONG
        await stopping
    await eventually(lambda: real_engine.stats().num_running_requests == 0)


async def test_draining_lets_a_request_finish(real_engine: Engine, real_gateway: Gateway) -> None:
    channel, stub = connect(real_gateway)
    async with channel:
        call = Stream(stub, "long", 2000)
        await call.begin()
        stopping = asyncio.create_task(real_gateway.stop(grace_s=60))
        assert len(await call.output()) == 2000
        await stopping
