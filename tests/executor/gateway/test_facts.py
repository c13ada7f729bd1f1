"""What the gateway tells about itself, its model and its engine."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2
from specsched_executor.gateway import Gateway, GatewayConfig, GatewayError, build_server
from specsched_executor.gateway.tokenizer_archive import CHUNK_BYTES, build_archive, to_chunks

from tests.executor.gateway.fakes import MODEL, FakeEngine, WordTokenizer

SERVICE = "vllm.grpc.engine.VllmEngine"


async def test_model_info(stub: Any) -> None:
    info = await stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (info.served_model_name, info.vocab_size, info.is_generation) == ("tiny", 8, True)
    assert (info.max_context_length, info.max_req_input_len) == (64, 63)
    assert list(info.eos_token_ids) == [7]


async def test_server_info_counts_open_requests(engine: FakeEngine, stub: Any) -> None:
    before = await stub.GetServerInfo(pb.GetServerInfoRequest())
    assert (before.active_requests, before.last_receive_timestamp) == (0, 0)
    call = stub.Generate(pb.GenerateRequest(request_id="a", text="hello"))
    await engine.received("a")
    during = await stub.GetServerInfo(pb.GetServerInfoRequest())
    assert (during.active_requests, during.server_type) == (1, "vllm-grpc")
    assert (during.model_dtype, during.max_num_seqs) == ("torch.float32", 4)
    assert during.last_receive_timestamp > 0
    call.cancel()


async def test_loads_are_the_engines_and_count_prompts_without_output(
    engine: FakeEngine, stub: Any
) -> None:
    call = stub.Generate(pb.GenerateRequest(request_id="a", text="hello world", stream=True))
    await engine.received("a")
    waiting = (await stub.GetLoads(pb.GetLoadsRequest())).loads[0]
    assert (waiting.num_running_reqs, waiting.num_waiting_reqs, waiting.num_total_reqs) == (3, 2, 5)
    assert (waiting.token_usage, waiting.utilization) == (0.25, 0.75)
    assert waiting.gen_throughput > 0
    assert waiting.num_waiting_uncached_tokens == 2
    engine.emit("a", [5])
    await call.read()
    started = (await stub.GetLoads(pb.GetLoadsRequest())).loads[0]
    assert started.num_waiting_uncached_tokens == 0
    call.cancel()


async def test_loads_of_a_rank_that_does_not_exist_are_refused(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="dp_rank = 3") as caught:
        await stub.GetLoads(pb.GetLoadsRequest(dp_rank=3))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_tokenizer_arrives_as_a_zip_with_its_fingerprint(stub: Any) -> None:
    chunks = [chunk async for chunk in stub.GetTokenizer(common_pb2.GetTokenizerRequest())]
    archive = b"".join(chunk.data for chunk in chunks)
    assert chunks[-1].sha256 == hashlib.sha256(archive).hexdigest()
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        assert files.namelist() == ["tokenizer.json", "tokenizer_config.json"]
        assert json.loads(files.read("tokenizer.json"))["model"]["vocab"]["hello"] == 3


def test_large_archives_are_cut_and_only_the_last_chunk_names_the_digest() -> None:
    archive = bytes(range(256)) * (CHUNK_BYTES // 100)
    chunks = list(to_chunks(archive))
    assert b"".join(chunk.data for chunk in chunks) == archive
    assert [bool(chunk.sha256) for chunk in chunks] == [False, False, True]
    assert all(len(chunk.data) <= CHUNK_BYTES for chunk in chunks)


def test_equal_files_give_equal_archives() -> None:
    files = {"b": b"2", "a": b"1"}
    assert build_archive(files) == build_archive(dict(reversed(files.items())))


@pytest.mark.parametrize("name", ["Embed", "FlushCache", "StartProfile", "StopProfile"])
async def test_calls_not_offered_say_so(stub: Any, name: str) -> None:
    request = {
        "Embed": pb.EmbedRequest(),
        "FlushCache": common_pb2.FlushCacheRequest(),
        "StartProfile": common_pb2.StartProfileRequest(),
        "StopProfile": common_pb2.StopProfileRequest(),
    }[name]
    with pytest.raises(grpc.aio.AioRpcError, match=f"{name} is not offered:") as caught:
        await getattr(stub, name)(request)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_kv_events_are_not_offered(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="GetLoads") as caught:
        await stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()).read()
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_both_health_checks_agree(
    gateway: Gateway, channel: grpc.aio.Channel, stub: Any
) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    statuses = health_pb2.HealthCheckResponse
    assert (await health.Check(request)).status == statuses.SERVING
    assert (await stub.HealthCheck(pb.HealthCheckRequest())).healthy
    await gateway.set_serving("the engine is gone")
    assert (await health.Check(request)).status == statuses.NOT_SERVING
    answer = await stub.HealthCheck(pb.HealthCheckRequest())
    assert (answer.healthy, answer.message) == (False, "the engine is gone")


async def test_health_can_be_watched(gateway: Gateway, channel: grpc.aio.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
    watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    await gateway.set_serving("the engine is gone")
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()


async def test_reflection_describes_the_service(channel: grpc.aio.Channel) -> None:
    reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[no-untyped-call]
    call = reflection.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    listed = (await call.read()).list_services_response.service
    assert {SERVICE, "grpc.health.v1.Health"} <= {service.name for service in listed}
    await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE))
    files = (await call.read()).file_descriptor_response.file_descriptor_proto
    parsed = [descriptor_pb2.FileDescriptorProto.FromString(each) for each in files]
    assert "VllmEngine" in {service.name for each in parsed for service in each.service}
    await call.done_writing()


async def test_a_port_in_use_is_refused(gateway: Gateway) -> None:
    with pytest.raises(GatewayError, match=f"127.0.0.1:{gateway.port}"):
        build_server(FakeEngine(), MODEL, WordTokenizer(), GatewayConfig(port=gateway.port))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("host", "0.0.0.0"),
        ("host", "10.0.0.1"),
        ("host", "example.org"),
        ("port", -1),
        ("port", 65536),
        ("max_open_requests", 0),
        ("max_message_bytes", 10),
        ("max_chunks_per_second", 0),
    ],
)
def test_bad_options_are_named(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{option} = {value!r}"):
        GatewayConfig(**{option: value})


@pytest.mark.parametrize(
    ("host", "address"), [("::1", "[::1]:50051"), ("localhost", "localhost:50051")]
)
def test_address_is_as_grpc_wants_it(host: str, address: str) -> None:
    assert GatewayConfig(host=host).address == address
