"""As much of systemd as a Type=notify service sees: its command line, its socket, its signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.deploy.unit_files import Unit, seconds

_START_S = 240.0
_DIRECTORIES = {"RuntimeDirectory": "t", "StateDirectory": "S", "CacheDirectory": "C"}


class Supervisor:
    """Runs units below `root`, which stands for / of a machine."""

    def __init__(self, root: Path, units: Mapping[str, Unit], variables: Mapping[str, str]) -> None:
        """units: by name without instance, as "specsched-scheduler@". variables: of their
        environment files."""
        self._root, self._units, self._variables = root, units, variables
        self.folders = {"t": str(root / "run"), "S": str(root / "lib"), "C": str(root / "cache")}
        self.running: dict[str, Service] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for service in self.running.values():
            service.popen.kill()
            service.close()

    def start(self, name: str) -> None:
        """`systemctl start`: returns when the service said that it is ready."""
        unit, instance = self._find(name)
        for key, specifier in _DIRECTORIES.items():
            folder = Path(self.folders[specifier]) / unit.value(key)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        program, *arguments = unit.command(instance, self.folders)
        command = [str(self._root / program.lstrip("/")), *arguments]
        environ = {**unit.environment(instance, self.folders), **self._variables}
        environ["WATCHDOG_USEC"] = str(int(seconds(unit.value("WatchdogSec")) * 1e6))
        service = Service(command, environ, self._root / f"{len(self.running)}.{os.getpid()}.sock")
        self.running[name] = service
        service.wait_for("READY=1")

    def stop(self, name: str) -> int:
        """`systemctl stop`: SIGTERM, and the exit status."""
        unit, _ = self._find(name)
        service = self.running.pop(name)
        service.popen.send_signal(signal.SIGTERM)
        status = service.popen.wait(seconds(unit.value("TimeoutStopSec")))
        service.close()
        return status

    def _find(self, name: str) -> tuple[Unit, str]:
        stem, at, instance = name.removesuffix(".service").partition("@")
        return self._units[stem + at], instance


class Service:
    """A process and what it told."""

    def __init__(self, command: list[str], environ: Mapping[str, str], address: Path) -> None:
        self._heard: list[str] = []
        self._changed = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(address))
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        environ = {"PATH": os.defpath, "NOTIFY_SOCKET": str(address), **environ}
        # The watchdog is that of the main process, which systemd names by its pid.
        self.popen = subprocess.Popen(
            ["/bin/sh", "-c", 'export WATCHDOG_PID=$$; exec "$@"', "sh", *command],
            env=environ,
            stdout=subprocess.DEVNULL,
        )

    def wait_for(self, message: str, timeout_s: float = _START_S) -> None:
        """Wait until the service told it; AssertionError where it ends or is silent instead."""

        deadline = time.monotonic() + timeout_s
        with self._changed:
            while message not in self._heard and self.popen.poll() is None:
                assert time.monotonic() < deadline, self._heard
                self._changed.wait(0.2)
            assert message in self._heard, (self.popen.poll(), self._heard)

    @property
    def heard(self) -> list[str]:
        with self._changed:
            return list(self._heard)

    def close(self) -> None:
        self.popen.wait()
        self._socket.shutdown(socket.SHUT_RD)  # ends the reader
        self._reader.join()
        self._socket.close()

    def _listen(self) -> None:
        while message := self._socket.recv(4096):
            with self._changed:
                self._heard += message.decode().splitlines()
                self._changed.notify_all()
