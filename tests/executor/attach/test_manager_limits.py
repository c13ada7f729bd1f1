"""The executor looks on where it has no descriptors left, and no more once it is told to stop."""

from __future__ import annotations

import threading

from specsched_executor.attach import AttachManager, manager, session

from tests.executor.attach.scripted_scheduler import ScriptedScheduler
from tests.executor.attach.support import FACTS, FAST, TIMEOUT_S, eventually


def test_a_session_that_gets_no_descriptor_leaves_its_lane_and_is_tried_again(
    run_dir, lanes, attacher, monkeypatch
):
    make_outbox, failures = session.Outbox, iter([OSError(24, "Too many open files")])

    def sometimes():
        for error in failures:
            raise error
        return make_outbox()

    monkeypatch.setattr(session, "Outbox", sometimes)
    attacher()
    scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"))
    eventually(lambda: len(lanes.calls) >= 3)
    scheduler.stop()
    assert lanes.calls[:3] == [("close", 0), ("ready", 0), ("activate", 0)]


def test_nobody_is_dialled_once_it_stops(run_dir, lanes, monkeypatch):
    scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"))
    is_looking, has_stopped = threading.Event(), threading.Event()
    look = type(run_dir).scheduler_sockets

    def look_for_long(self):
        is_looking.set()
        assert has_stopped.wait(TIMEOUT_S)
        return look(self)

    monkeypatch.setattr(type(run_dir), "scheduler_sockets", look_for_long)
    monkeypatch.setattr(manager, "_STOP_TIMEOUT_S", 0.0)
    attacher = AttachManager(run_dir, lanes, FACTS, FAST)
    attacher.start()
    assert is_looking.wait(TIMEOUT_S)
    (looking,) = (each for each in attacher._threads if each.name == "attach-poll")
    attacher.stop()
    has_stopped.set()
    eventually(lambda: not looking.is_alive())
    scheduler.stop()
    assert lanes.opened == {}
