from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from specsched_protocol.run_dir import RunDirError
from specsched_scheduler.service.errors import SocketInUseError
from specsched_scheduler.service.socket_claim import claim_socket

HOLD = """
import socket, sys, pathlib
from specsched_scheduler.service.socket_claim import claim_socket
path = pathlib.Path(sys.argv[1])
with claim_socket(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path):
    """Another process that holds the claim and listens."""
    path = tmp_path / "it.sock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    yield path, process
    process.kill()
    process.communicate()


def test_live_owner_is_named_and_keeps_its_socket(owner):
    path, process = owner
    with pytest.raises(SocketInUseError, match=rf"pid {process.pid}\).*another --name"):
        claim_socket(path).__enter__()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_socket_of_a_killed_owner_is_replaced(owner):
    path, process = owner
    process.kill()
    process.wait()
    assert path.is_socket()
    with claim_socket(path):
        assert not path.exists()
        assert path.with_suffix(".lock").read_text() == f"{os.getpid()}\n"


def test_socket_is_removed_at_the_end_and_can_be_claimed_again(tmp_path: Path):
    path = tmp_path / "it.sock"
    for _ in range(2):
        with claim_socket(path), socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
        assert not path.exists()


def test_listener_without_a_lock_is_left_alone(tmp_path: Path):
    path = tmp_path / "it.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(RunDirError, match="in use by a running process"):
            claim_socket(path).__enter__()
        assert path.is_socket()


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path):
    path = tmp_path / "it.sock"
    path.write_text("precious")
    with pytest.raises(RunDirError, match="not a socket"):
        claim_socket(path).__enter__()
    assert path.read_text() == "precious"
