"""Faults of the executor's own threads: they go on, and nobody stays attached unwatched."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from specsched_executor.attach.following import Following
from specsched_executor.attach.supervision import SupervisionConfig
from structlog.testing import capture_logs

from tests.executor.attach.scripted_scheduler import ScriptedScheduler
from tests.executor.attach.support import eventually

FOR_EVER = SupervisionConfig(failover_after_ms=3_600_000.0)
AT_ONCE = SupervisionConfig(failover_after_ms=0.0)


def failing(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Has a method raise while the event is set."""
    method: Callable[..., object] = getattr(owner, name)
    broken = threading.Event()

    def sometimes(*arguments: object) -> object:
        if broken.is_set():
            raise RuntimeError("nobody foresaw this")
        return method(*arguments)

    monkeypatch.setattr(owner, name, sometimes)
    return broken


def with_traceback(logs: list, event: str) -> list[str]:
    return [line["reason"] for line in logs if line["event"] == event and "exc_info" in line]


def test_a_watch_that_fails_for_a_while_goes_on(run_dir, lanes, attacher, monkeypatch):
    broken = failing(Following, "tick", monkeypatch)
    scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"))
    with capture_logs() as logs:
        manager = attacher(supervision=FOR_EVER)
        eventually(manager.attachments)
        broken.set()
        eventually(lambda: manager.totals().num_faults >= 3)
        num_heard = len(scheduler.received)
        eventually(lambda: len(scheduler.received) > num_heard)  # heartbeats are sent all the same
        broken.clear()
        num_faults = manager.totals().num_faults
        num_heard = len(scheduler.received)
        eventually(lambda: len(scheduler.received) > num_heard + 1)
    assert manager.totals().num_faults <= num_faults + 1
    assert len(scheduler.hellos) == len(manager.attachments()) == 1
    reason = "RuntimeError: nobody foresaw this"
    assert with_traceback(logs, "watching schedulers failed") == [reason]
    scheduler.stop()


def test_who_cannot_be_watched_is_left_and_attached_again(run_dir, lanes, attacher, monkeypatch):
    broken = failing(Following, "tick", monkeypatch)
    scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"))
    with capture_logs() as logs:
        manager = attacher(supervision=AT_ONCE)
        eventually(manager.attachments)
        broken.set()
        lanes.wait_for(("ready", 0), ("activate", 0), ("close", 0))
        eventually(lambda: any(line["event"] == "lost scheduler" for line in logs))
        broken.clear()
        eventually(manager.attachments)
    lost = {line["reason"] for line in logs if line["event"] == "lost scheduler"}
    assert lost == {"this executor fails to watch it"}
    assert len(scheduler.hellos) >= 2
    scheduler.stop()


@pytest.mark.parametrize(
    ("owner", "name", "event"),
    [
        ("RunDir", "scheduler_sockets", "looking for schedulers failed"),
        ("Following", "join", "attachment failed"),
    ],
)
def test_looking_and_attaching_go_on_after_a_fault(
    run_dir, lanes, attacher, monkeypatch, owner, name, event
):
    of = {"RunDir": type(run_dir), "Following": Following}[owner]
    broken = failing(of, name, monkeypatch)
    broken.set()
    scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"))
    with capture_logs() as logs:
        manager = attacher()
        eventually(lambda: manager.totals().num_faults >= 2)
        assert manager.attachments() == ()
        broken.clear()
        eventually(manager.attachments)
    assert with_traceback(logs, event) == ["RuntimeError: nobody foresaw this"]
    scheduler.stop()


def test_a_scheduler_is_dialled_again_after_no_thread_could_be_started(
    run_dir, lanes, attacher, monkeypatch
):
    start = threading.Thread.start
    exhausted = threading.Event()
    exhausted.set()

    def seldom(thread: threading.Thread) -> None:
        if thread.name == "attach-a" and exhausted.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", seldom)
    scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"))
    with capture_logs() as logs:
        manager = attacher()
        lanes.wait_for(("close", 0), ("close", 0))
        exhausted.clear()
        eventually(manager.attachments)
    refusals = [line["reason"] for line in logs if line["event"] == "cannot attach"]
    assert refusals == ["can't start new thread"]
    scheduler.stop()


def test_who_is_gone_is_not_attached_though_no_successor_could_be_chosen(
    run_dir, lanes, attacher, monkeypatch
):
    broken = failing(Following, "fitness", monkeypatch)
    first = ScriptedScheduler(run_dir.scheduler_socket("a"))
    with capture_logs() as logs:
        manager = attacher(supervision=FOR_EVER)
        eventually(manager.attachments)
        second = ScriptedScheduler(run_dir.scheduler_socket("b"))
        eventually(lambda: len(manager.attachments()) == 2)
        broken.set()
        first.stop()
        eventually(lambda: ("close", 0) in lanes.calls)
        eventually(lambda: any(line["event"] == "lost scheduler" for line in logs))
        assert [info.scheduler_name for info in manager.attachments()] == ["b"]
        broken.clear()
        eventually(lambda: ("activate", 1) in lanes.calls)
        again = ScriptedScheduler(run_dir.scheduler_socket("a"))
        eventually(lambda: len(manager.attachments()) == 2)
    assert with_traceback(logs, "attachment failed") == ["RuntimeError: nobody foresaw this"]
    for scheduler in (second, again):
        scheduler.stop()
