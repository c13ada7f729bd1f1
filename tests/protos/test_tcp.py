"""Addresses, who is local, and what certificate files are refused for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from specsched_protocol.tcp import TcpAddress, TlsFiles, is_local_peer, tls_files

from tests.certificates import Authority

OPTIONS = ("ca", "cert", "key")


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:50061", "127.0.0.1", 50061, True),
        ("127.9.9.9:1", "127.9.9.9", 1, True),
        ("localhost:65535", "localhost", 65535, True),
        ("[::1]:80", "::1", 80, True),
        ("10.0.0.7:50061", "10.0.0.7", 50061, False),
        ("0.0.0.0:50061", "0.0.0.0", 50061, False),
        ("[2001:db8::1]:443", "2001:db8::1", 443, False),
        ("planner.example:443", "planner.example", 443, False),
        ("localhost.example:443", "localhost.example", 443, False),
    ],
)
def test_addresses_are_read_and_written_alike(text, host, port, is_loopback):
    address = TcpAddress.parse(text)
    assert (address.host, address.port, address.is_loopback) == (host, port, is_loopback)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":50061",
        "host:0",
        "host:65536",
        "host:-1",
        "host:x",
        "host:٣",
        "::1:80",
        "[::1]",
        "http://host:80",
        "a b:80",
        "unix:/x:1",
        "[]:80",
    ],
)
def test_what_is_no_address_is_named(text):
    with pytest.raises(ValueError, match=r"is no address; accepted: host:port") as caught:
        TcpAddress.parse(text)
    assert repr(text) in str(caught.value)


def test_port_0_is_for_listening_only():
    assert TcpAddress.parse("127.0.0.1:0", min_port=0).port == 0


@pytest.mark.parametrize(
    ("peer", "is_local"),
    [
        ("unix:", True),
        ("unix:/run/x.sock", True),
        ("ipv4:127.0.0.1:4242", True),
        ("ipv6:%5B::1%5D:4242", True),
        ("ipv6:[::1]:4242", True),
        ("ipv4:10.0.0.1:4242", False),
        ("ipv6:%5B2001:db8::1%5D:4242", False),
        ("unknown", False),
        ("", False),
        ("vsock:1:2", False),
    ],
)
def test_only_peers_of_this_machine_are_local(peer, is_local):
    assert is_local_peer(peer) is is_local


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return Authority(tmp_path).issue("end")


def test_sound_files_pass(files):
    files.check()
    found = tls_files(ca=files.ca, certificate=files.certificate, key=files.key, options=OPTIONS)
    assert found == files


def test_no_file_at_all_means_plain_text():
    assert tls_files(ca=None, certificate=None, key=None, options=OPTIONS) is None


@pytest.mark.parametrize("left_out", ["ca", "certificate", "key"])
def test_part_of_the_files_is_refused_and_the_rest_named(files, left_out):
    given = dataclasses.asdict(files) | {left_out: None}
    missing = OPTIONS[["ca", "certificate", "key"].index(left_out)]
    with pytest.raises(ValueError, match=f"^{missing} missing: ca, cert, key go together"):
        tls_files(**given, options=OPTIONS)


@pytest.mark.parametrize("broken", ["ca", "certificate", "key"])
@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_missing_and_unusable_files_are_named(files, tmp_path, broken, content):
    path = tmp_path / "broken.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.pem") as caught:
        dataclasses.replace(files, **{broken: path}).check()
    assert ("does not exist" in str(caught.value)) == (content is None)


def test_key_of_another_certificate_is_refused(files, tmp_path):
    other = Authority(tmp_path / "other").issue("other")
    with pytest.raises(ValueError, match="unusable together"):
        dataclasses.replace(files, key=other.key).check()
