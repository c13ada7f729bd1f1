"""The run directory refuses what others could tamper with."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from specsched_protocol import run_dir
from specsched_protocol.run_dir import (
    RunDir,
    RunDirError,
    check_socket_path,
    default_run_dir,
    remove_stale_socket,
)


@pytest.fixture
def bound(tmp_path: Path) -> tuple[socket.socket, Path]:
    path = tmp_path / "a.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.fspath(path))
    return listener, path


def test_default_prefers_the_users_runtime_directory():
    assert default_run_dir({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/specsched")
    assert default_run_dir({}) == Path(f"/tmp/specsched-{os.geteuid()}")


def test_directories_are_created_private(tmp_path: Path):
    opened = RunDir.open(tmp_path / "run")
    executor = opened.executor_dir(bytes(range(16)))
    for path in (opened.root, opened.schedulers_dir, executor):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert executor.name == "000102030405"
    assert RunDir.open(tmp_path / "run") == opened


def test_writable_by_others_is_refused(tmp_path: Path):
    path = tmp_path / "run"
    path.mkdir()
    path.chmod(0o770)
    with pytest.raises(RunDirError, match="mode 0770: group or others can write"):
        RunDir.open(path)


def test_foreign_owner_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setattr(run_dir.os, "geteuid", lambda: 4242)
    with pytest.raises(RunDirError, match=f"belongs to uid {os.getuid()}, expected 4242"):
        RunDir.open(tmp_path / "run")


def test_symbolic_link_is_refused(tmp_path: Path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    with pytest.raises(RunDirError, match="symbolic links are refused"):
        RunDir.open(tmp_path / "run")


def test_missing_parent_is_named(tmp_path: Path):
    with pytest.raises(RunDirError, match=r"cannot create run directory .*: No such file"):
        RunDir.open(tmp_path / "absent" / "run")


def test_longest_socket_path():
    fits = Path("/" + "x" * (run_dir.MAX_SOCKET_PATH_BYTES - 1))
    assert check_socket_path(fits) == fits
    with pytest.raises(RunDirError, match="has 108 bytes, at most 107"):
        check_socket_path(Path(f"{fits}x"))


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "x" * 65, "é"])
def test_scheduler_names_that_are_no_file_names(tmp_path: Path, name: str):
    with pytest.raises(RunDirError, match="scheduler name"):
        RunDir.open(tmp_path / "run").scheduler_socket(name)


def test_only_sockets_are_discovered(tmp_path: Path):
    opened = RunDir.open(tmp_path / "run")
    (opened.schedulers_dir / "file.sock").touch()
    path = opened.scheduler_socket("v1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.fspath(path))
        assert opened.scheduler_sockets() == (path,)


def test_stale_socket_is_removed(bound: tuple[socket.socket, Path]):
    listener, path = bound
    listener.close()
    remove_stale_socket(path)
    assert not path.exists()
    remove_stale_socket(path)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_socket_in_use_is_kept(tmp_path: Path, kind: int):
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        with pytest.raises(RunDirError, match="in use by a running process"):
            remove_stale_socket(path)
    assert path.exists()


def test_file_in_the_place_of_a_socket_is_kept(tmp_path: Path):
    (tmp_path / "a.sock").touch()
    with pytest.raises(RunDirError, match="not a socket"):
        remove_stale_socket(tmp_path / "a.sock")


@pytest.mark.parametrize(("age_s", "is_removed"), [(0.0, False), (3600.0, True)])
def test_folders_of_killed_executors_are_removed(tmp_path: Path, age_s: float, is_removed: bool):
    opened = RunDir.open(tmp_path / "run")
    path = opened.handoff_socket(bytes(16))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.fspath(path))
    then = path.stat().st_mtime - age_s
    os.utime(path, (then, then))
    opened.remove_stale_executors()
    assert path.parent.exists() != is_removed


def test_folder_that_another_executor_removes_first_is_no_error(tmp_path: Path, monkeypatch):
    opened = RunDir.open(tmp_path / "run")
    path = opened.handoff_socket(bytes(16))
    path.touch()
    os.utime(path, (0, 0))

    def removed_meanwhile(socket_path: Path) -> bool:
        socket_path.unlink()
        socket_path.parent.rmdir()
        return False

    monkeypatch.setattr(run_dir, "is_listening", removed_meanwhile)
    opened.remove_stale_executors()
    assert not path.parent.exists()


def test_a_folder_that_cannot_be_removed_is_no_error(tmp_path: Path):
    opened = RunDir.open(tmp_path / "run")
    path = opened.handoff_socket(bytes(16))
    path.touch()
    os.utime(path, (0, 0))
    (path.parent / "somebody's").touch()
    opened.remove_stale_executors()
    assert [each.name for each in path.parent.iterdir()] == ["somebody's"]


def test_looking_for_a_run_directory_creates_nothing_and_refuses_as_opening_does(tmp_path: Path):
    root = tmp_path / "run"
    assert RunDir.find(root) is None
    assert not root.exists()
    RunDir.open(root)
    assert RunDir.find(root) == RunDir(root)
    (root / "schedulers").chmod(0o777)
    with pytest.raises(RunDirError, match="mode 0777"):
        RunDir.find(root)


def test_a_path_that_cannot_be_is_refused_by_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunDirError, match="File name too long"):
        RunDir.find(tmp_path / ("a" * 5000))
    with pytest.raises(RunDirError, match="Not a directory"):
        RunDir.find(tmp_path / "file" / "run")
