"""The second address of the gateway: mutual TLS, and both addresses in one server."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc.aio
import pytest
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from specsched_executor.gateway import GatewayConfig, GatewayError, build_server, check_port
from specsched_protocol.tcp import TcpAddress, TlsFiles

from tests.certificates import Authority
from tests.executor.gateway.fakes import MODEL, FakeEngine, WordTokenizer, serving

ANY_PORT = TcpAddress("127.0.0.1", 0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


async def load_seen_by(channel: grpc.aio.Channel) -> int:
    async with channel:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        answer = await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest(), timeout=20)
        return int(answer.loads[0].num_running_reqs)


def channel_with(files: TlsFiles, port: int) -> grpc.aio.Channel:
    ca, certificate, key = files.read()
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return grpc.aio.secure_channel(f"localhost:{port}", credentials)


async def test_both_addresses_are_served(authority: Authority) -> None:
    server, client = authority.issue("server"), authority.issue("client", "gateway")
    async with serving(FakeEngine(), listen=ANY_PORT, tls=server) as gateway:
        assert gateway.listen_port not in {None, gateway.port}
        assert await load_seen_by(channel_with(client, gateway.listen_port)) == 3
        plain = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}")
        assert await load_seen_by(plain) == 3


async def test_nobody_is_served_without_a_certificate_of_the_authority(
    authority: Authority, tmp_path: Path
) -> None:
    server = authority.issue("server")
    stranger = Authority(tmp_path / "theirs").issue("client", "gateway", trusting=authority)
    anonymous = grpc.ssl_channel_credentials(authority.path.read_bytes())
    async with serving(FakeEngine(), listen=ANY_PORT, tls=server) as gateway:
        address = f"localhost:{gateway.listen_port}"
        for channel in (
            channel_with(stranger, gateway.listen_port),
            grpc.aio.secure_channel(address, anonymous),
            grpc.aio.insecure_channel(address),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await load_seen_by(channel)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_plain_second_address_is_served_where_it_is_allowed() -> None:
    async with serving(FakeEngine(), listen=ANY_PORT) as gateway:
        plain = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.listen_port}")
        assert await load_seen_by(plain) == 3


async def test_a_taken_second_address_is_named(authority: Authority) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        config = GatewayConfig(port=0, listen=TcpAddress("127.0.0.1", port))
        told = rf"cannot listen on 127.0.0.1:{port} \(--listen\)"
        with pytest.raises(GatewayError, match=told):
            check_port(config)
        with pytest.raises(GatewayError, match=told):
            build_server(FakeEngine(), MODEL, WordTokenizer(), config)


async def test_a_key_that_vanished_is_told(authority: Authority) -> None:
    files = authority.issue("server")
    files.key.unlink()
    config = GatewayConfig(port=0, listen=ANY_PORT, tls=files)
    with pytest.raises(GatewayError, match=r"--listen.*server\.key"):
        build_server(FakeEngine(), MODEL, WordTokenizer(), config)
