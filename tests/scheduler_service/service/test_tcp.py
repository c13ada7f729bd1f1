"""TCP: plain text on loopback, mutual TLS with the right authority only, refusals by name."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from specsched_protocol.settings import ConfigError, load_settings
from specsched_protocol.tcp import TlsFiles
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.v1.scheduler_pb2_grpc import SchedulerServiceStub
from specsched_scheduler.config import SchedulerConfig
from specsched_scheduler.service.errors import ListenError

from tests.certificates import Authority


def tls_options(files: TlsFiles) -> dict[str, Path]:
    return {"tls_cert": files.certificate, "tls_key": files.key, "tls_client_ca": files.ca}


def credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    ca, certificate, key = files.read()
    return grpc.ssl_channel_credentials(ca, key, certificate)


async def ask(channel: grpc.aio.Channel) -> pb.GetStatusResponse:
    async with channel:
        return await SchedulerServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=10)


@pytest.fixture
def authority(tmp_path) -> Authority:
    return Authority(tmp_path / "ca")


async def test_loopback_speaks_plain_text_beside_the_socket(start):
    scheduler = await start(listen="127.0.0.1:0")
    port = scheduler.server.tcp_port
    over_tcp = await ask(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
    assert over_tcp.scheduler_id == (await scheduler.status()).scheduler_id


async def test_without_listen_there_is_no_port(start):
    assert (await start()).server.tcp_port is None


async def test_mutual_tls_admits_who_shows_a_certificate_of_the_authority(start, authority):
    scheduler = await start(listen="127.0.0.1:0", **tls_options(authority.issue("server")))
    target = f"localhost:{scheduler.server.tcp_port}"
    files = authority.issue("client")
    assert (await ask(grpc.aio.secure_channel(target, credentials(files)))).version


@pytest.fixture
async def tls_port(start, authority) -> int:
    scheduler = await start(listen="127.0.0.1:0", **tls_options(authority.issue("server")))
    return scheduler.server.tcp_port


async def refused(channel: grpc.aio.Channel) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(channel)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(caught.value.details())


async def test_certificate_of_another_authority_is_refused(tls_port, authority, tmp_path):
    stranger = Authority(tmp_path / "other").issue("client", trusting=authority)
    await refused(grpc.aio.secure_channel(f"localhost:{tls_port}", credentials(stranger)))


async def test_client_without_a_certificate_is_refused(tls_port, authority):
    anonymous = grpc.ssl_channel_credentials(authority.path.read_bytes())
    await refused(grpc.aio.secure_channel(f"localhost:{tls_port}", anonymous))


async def test_plain_text_to_a_tls_port_is_refused(tls_port):
    await refused(grpc.aio.insecure_channel(f"localhost:{tls_port}"))


async def test_server_of_another_authority_is_refused_by_the_client(tls_port, authority, tmp_path):
    wary = authority.issue("client", trusting=Authority(tmp_path / "other"))
    details = await refused(grpc.aio.secure_channel(f"localhost:{tls_port}", credentials(wary)))
    assert "CERTIFICATE_VERIFY_FAILED" in details


async def test_server_under_another_name_is_refused_by_the_client(start, authority):
    files = authority.issue("server", "elsewhere.example")
    scheduler = await start(listen="127.0.0.1:0", **tls_options(files))
    target = f"localhost:{scheduler.server.tcp_port}"
    client = credentials(authority.issue("client"))
    assert "name" in (await refused(grpc.aio.secure_channel(target, client))).lower()


async def test_taken_address_is_named(start):
    first = await start(listen="127.0.0.1:0")
    with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{first.server.tcp_port} \(--listen\)"):
        await start(name="other", listen=f"127.0.0.1:{first.server.tcp_port}")


# ===================== Options =====================


def load(**flags: object) -> SchedulerConfig:
    return load_settings(SchedulerConfig, flags, {})


@pytest.mark.parametrize("address", ["0.0.0.0:50061", "[::]:50061", "10.1.2.3:1", "planner:1"])
def test_other_machines_need_mutual_tls(address, authority):
    with pytest.raises(ConfigError, match=re.escape(address)) as caught:
        load(listen=address)
    assert "give tls_cert, tls_key and tls_client_ca" in str(caught.value)
    assert load(listen=address, **tls_options(authority.issue("server"))).tls is not None


def test_tls_files_without_listen_have_no_effect(authority):
    with pytest.raises(ConfigError, match="no effect without listen"):
        load(**tls_options(authority.issue("server")))


@pytest.mark.parametrize("left_out", ["tls_cert", "tls_key", "tls_client_ca"])
def test_part_of_the_tls_files_is_refused(authority, left_out):
    options = tls_options(authority.issue("server"))
    del options[left_out]
    with pytest.raises(ConfigError, match=f"{left_out} missing"):
        load(listen="127.0.0.1:0", **options)


def test_no_address_is_named_with_its_option():
    with pytest.raises(ConfigError, match=r"listen = '50061' \(--listen or SPECSCHED_SCHEDULER_"):
        load(listen="50061")
