"""nginx on loopback, with a configuration of ours."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.processes import wait_until

__all__ = ["nginx"]


@contextmanager
def nginx(folder: Path, text: str, replaced: Mapping[str, str], port: int) -> Iterator[None]:
    """nginx in `folder` with the configuration `text`, in which addresses and paths are `replaced`.

    It listens on `port` when this returns.
    """
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("nginx is missing: scripts/setup installs it")
        pytest.skip("needs nginx: apt-get install nginx-light")
    for was, now in replaced.items():
        assert was in text
        text = text.replace(was, now)
    (folder / "nginx.conf").write_text(text)
    as_root = "user root; " if os.geteuid() == 0 else ""
    command = [program, "-p", folder, "-c", folder / "nginx.conf", "-g", f"{as_root}daemon off;"]
    with (folder / "nginx.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or _accepts(port))
        assert process.poll() is None, (folder / "nginx.log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(60)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
