"""The executor finds, follows and loses schedulers; lanes are opened and closed to match."""

from __future__ import annotations

import gc
import os
import socket
import threading

import grpc
import pytest
from specsched_executor.attach import endpoints
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from structlog.testing import capture_logs

from tests.executor.attach.scripted_scheduler import (
    READY,
    THROUGHPUT,
    ScriptedScheduler,
    sound,
    welcome,
)
from tests.executor.attach.support import FACTS, TIMEOUT_S, eventually


def test_first_ready_scheduler_becomes_active(run_dir, lanes, attacher):
    manager = attacher()
    scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"))
    lanes.wait_for(("ready", 0), ("activate", 0))
    eventually(manager.attachments)
    (info,) = manager.attachments()
    assert (info.scheduler_name, info.transport, info.active) == ("a", "shared_memory", True)
    assert (info.policy.name, info.scheduler_version) == ("throughput", "9")
    (hello,) = scheduler.hellos
    assert (hello.boot_id, hello.epoch, list(hello.capture_sizes)) == (FACTS.boot_id, 1, [1, 2, 4])
    assert hello.shared_memory.nonce == bytes(32)
    assert hello.accepts_inline
    message = info.to_message()
    assert (message.name, message.lane, message.epoch, message.active) == ("a", 0, 1, True)
    assert (message.transport, message.transport_reason) == (pb.TRANSPORT_SHARED_MEMORY, "")
    assert message.target == f"unix:{run_dir.scheduler_socket('a')}"
    scheduler.stop()


def test_dead_active_is_replaced_before_its_lane_is_closed(run_dir, lanes, attacher):
    manager = attacher()
    first = ScriptedScheduler(run_dir.scheduler_socket("a"))
    lanes.wait_for(("ready", 0), ("activate", 0))
    second = ScriptedScheduler(run_dir.scheduler_socket("b"))
    lanes.wait_for(("ready", 0), ("activate", 0), ("ready", 1))
    first.stop()
    # In this order no step is read while nobody is active.
    lanes.wait_for(("ready", 0), ("activate", 0), ("ready", 1), ("activate", 1), ("close", 0))
    eventually(lambda: len(manager.attachments()) == 1)
    (info,) = manager.attachments()
    assert (info.scheduler_name, info.active) == ("b", True)
    second.stop()
    eventually(lambda: ("close", 1) in lanes.calls)
    assert manager.num_switches() == {"first": 1, "lost": 1}


def test_restarted_scheduler_is_attached_again_with_a_new_epoch(run_dir, lanes, attacher):
    attacher(min_backoff_ms=60_000, max_backoff_ms=60_000)
    path = run_dir.scheduler_socket("a")
    first = ScriptedScheduler(path)
    lanes.wait_for(("ready", 0), ("activate", 0))
    first.stop()
    eventually(lambda: ("close", 0) in lanes.calls)
    # A new process binds a new socket: a backoff of the old one, here a minute, does not hold.
    path.unlink(missing_ok=True)
    second = ScriptedScheduler(path)
    eventually(lambda: lanes.calls.count(("ready", 0)) == 2)
    assert second.hellos[0].epoch > first.hellos[0].epoch
    eventually(lambda: lanes.calls[-1] == ("activate", 0))
    second.stop()


def test_stale_socket_is_retried_until_someone_serves(run_dir, lanes, attacher, monkeypatch):
    path, looks = run_dir.scheduler_socket("a"), []

    def look(path, real=endpoints.is_listening):
        looks.append(path)
        return real(path)

    monkeypatch.setattr(endpoints, "is_listening", look)
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(path))
    with capture_logs() as logs:
        attacher()
        eventually(lambda: len(looks) >= 3)
    assert lanes.calls == [], "no lane is opened for nobody"
    warnings = [log for log in logs if log["event"] == "cannot attach"]
    assert len(warnings) == 1, "the same failure is told once"
    assert warnings[0]["reason"] == f"nobody listens at unix:{path}"
    path.unlink()
    scheduler = ScriptedScheduler(path)
    eventually(lambda: ("activate", 0) in lanes.calls)
    scheduler.stop()


def test_looking_goes_on_after_it_was_not_possible(run_dir, lanes, attacher, monkeypatch):
    """Two ways to run out of descriptors: to look into the folder, to open a lane."""
    look, open_lane = type(run_dir).scheduler_sockets, lanes.open_lane
    failures = iter([OSError(24, "Too many open files")] * 3)

    def sometimes(self, real=look):
        for error in failures:
            raise error
        return real(self)

    lane_failures = iter([OSError(24, "Too many open files")])

    def seldom(**options):
        for error in lane_failures:
            raise error
        return open_lane(**options)

    monkeypatch.setattr(type(run_dir), "scheduler_sockets", sometimes)
    monkeypatch.setattr(lanes, "open_lane", seldom)
    with capture_logs() as logs:
        attacher()
        scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"))
        lanes.wait_for(("ready", 0), ("activate", 0))
    assert sum(line["event"] == "cannot look for schedulers" for line in logs) == 1
    scheduler.stop()


def _refuse(hello, requests, context):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the executor speaks 1..1, I speak 2..3")
    yield


def _never_ready(hello, requests, context):
    yield welcome(hello)
    for _ in requests:
        pass


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (_refuse, "FAILED_PRECONDITION: the executor speaks 1..1, I speak 2..3"),
        (_never_ready, "it was not ready within 0.5 s"),
        (lambda h, r, c: iter([READY]), "it sent Ready out of turn"),
        (lambda h, r, c: iter([welcome(h), welcome(h)]), "it sent a second Welcome"),
        (
            lambda h, r, c: iter([welcome(h, protocol_version=3)]),
            "it chose protocol version 3, this executor speaks 1..2",
        ),
        (lambda h, r, c: iter([welcome(h, lane=3)]), "it took lane 3, offered was 0"),
        (lambda h, r, c: iter([]), "it ended the stream"),
        (
            lambda h, r, c: iter([welcome(h, transport=0)]),
            "it chose TRANSPORT_UNSPECIFIED, offered: TRANSPORT_SHARED_MEMORY, TRANSPORT_INLINE",
        ),
        (
            lambda h, r, c: iter([welcome(h, transport=7)]),
            "it chose 7, offered: TRANSPORT_SHARED_MEMORY, TRANSPORT_INLINE",
        ),
        (
            lambda h, r, c: iter([welcome(h, transport=pb.TRANSPORT_INLINE), READY]),
            "its steps cannot travel on the stream: these lanes have no memory",
        ),
    ],
)
def test_unsound_scheduler_is_never_activated_and_the_reason_is_told(
    run_dir, lanes, attacher, script, reason
):
    with capture_logs() as logs:
        manager = attacher()
        scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"), script)
        lanes.wait_for(("close", 0))
        # A try before it listens fails for another reason.
        eventually(lambda: reason in {log.get("reason") for log in logs})
    assert manager.attachments() == ()
    assert ("activate", 0) not in lanes.calls
    scheduler.stop()


@pytest.mark.parametrize(
    ("options", "chosen", "offered"),
    [
        ({"accepts_inline": False}, "TRANSPORT_INLINE", "TRANSPORT_SHARED_MEMORY"),
        ({"shares_memory": False}, "TRANSPORT_SHARED_MEMORY", "TRANSPORT_INLINE"),
    ],
)
def test_transport_that_was_not_offered_is_refused(
    run_dir, lanes, attacher, options, chosen, offered
):
    with capture_logs() as logs:
        attacher(**options)
        scheduler = ScriptedScheduler(
            run_dir.scheduler_socket("a"),
            lambda h, r, c: iter([welcome(h, transport=pb.Transport.Value(chosen)), READY]),
        )
        lanes.wait_for(("close", 0))
        eventually(lambda: any(log["event"] == "cannot attach" for log in logs))
    assert f"it chose {chosen}, offered: {offered}" in {log.get("reason") for log in logs}
    (hello, *_) = scheduler.hellos
    assert hello.HasField("shared_memory") == ("SHARED" in offered)
    assert hello.accepts_inline == ("INLINE" in offered)
    scheduler.stop()


def test_decision_on_a_stream_with_shared_memory_ends_it(run_dir, lanes, attacher):
    def script(hello, requests, context):
        yield welcome(hello)
        yield READY
        yield pb.AttachResponse(decision=pb.InlineDecision(step_id=3))
        context.abort(grpc.StatusCode.INTERNAL, "the executor took it")

    with capture_logs() as logs:
        attacher()
        scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"), script)
        lanes.wait_for(("ready", 0), ("activate", 0), ("close", 0))
        eventually(lambda: any(log["event"] == "lost scheduler" for log in logs))
    reasons = {log.get("reason") for log in logs if log["event"] == "lost scheduler"}
    assert reasons == {"it sent a decision, but its transport is shared memory"}
    scheduler.stop()


def test_unsound_scheduler_does_not_disturb_a_sound_one(run_dir, lanes, attacher):
    manager = attacher()
    bad = ScriptedScheduler(run_dir.scheduler_socket("a"), _refuse)
    good = ScriptedScheduler(run_dir.scheduler_socket("b"))
    eventually(lambda: len(bad.hellos) >= 3)
    eventually(manager.attachments)
    assert [info.scheduler_name for info in manager.attachments()] == ["b"]
    assert len(good.hellos) == 1
    bad.stop()
    good.stop()


def test_schedulers_beyond_the_lanes_wait_for_a_free_one(run_dir, lanes, attacher):
    manager = attacher()
    schedulers = [ScriptedScheduler(run_dir.scheduler_socket(f"s{i}")) for i in range(5)]
    eventually(lambda: len(manager.attachments()) == 4)
    (waiting,) = [s for s in schedulers if not s.hellos]
    next(s for s in schedulers if s is not waiting).stop()
    eventually(lambda: waiting.hellos)
    for scheduler in schedulers:
        scheduler.stop()


def test_policy_change_heartbeats_and_cost_updates_flow(run_dir, lanes, attacher):
    changing = threading.Event()
    failures = pb.PolicyFailures(num_requests=2, policy=THROUGHPUT, error="it raised")

    def script(hello, requests, context):
        yield welcome(hello)
        yield READY
        changing.wait(TIMEOUT_S)
        yield pb.AttachResponse(heartbeat=pb.SchedulerHeartbeat(policy_failures=failures))
        spec = plan_pb2.PolicySpec(name="fixed", parameters={"k": 3})
        yield pb.AttachResponse(policy_changed=pb.PolicyChanged(policy=spec))
        for _ in requests:
            pass

    manager = attacher()
    scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"), script)
    eventually(manager.attachments)
    outcomes = pb.PlanOutcomes(num_planned_steps=3, num_fallback_steps={"late": 1})
    manager.plan_outcomes = lambda: outcomes
    manager.update_cost(plan_pb2.CostModel(fingerprint="second"))
    assert not manager.attachments()[0].to_message().HasField("policy_failures")
    changing.set()
    eventually(lambda: manager.attachments()[0].policy.name == "fixed")
    assert manager.attachments()[0].to_message().policy_failures == failures
    eventually(lambda: any(r.heartbeat.step_id == 42 for r in scheduler.received))
    eventually(lambda: any(r.heartbeat.plan_outcomes == outcomes for r in scheduler.received))
    eventually(lambda: any(r.cost.fingerprint == "second" for r in scheduler.received))
    scheduler.stop()
    # Whoever comes later is told the new profile at once.
    later = ScriptedScheduler(run_dir.scheduler_socket("b"))
    eventually(lambda: later.hellos)
    assert later.hellos[0].cost.fingerprint == "second"
    later.stop()


def test_stop_detaches_closes_lanes_and_leaves_no_thread(run_dir, lanes, attacher):
    manager = attacher()
    scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"), sound)
    eventually(manager.attachments)
    manager.stop()
    assert ("close", 0) in lanes.calls
    assert any(r.detach.reason for r in scheduler.received)
    assert not [t for t in threading.enumerate() if t.name.startswith("attach-")]
    scheduler.stop()


def test_lost_schedulers_leave_no_descriptor_until_garbage_is_collected(run_dir, lanes, attacher):
    def attach_and_lose() -> None:
        lanes.calls.clear()
        scheduler = ScriptedScheduler(run_dir.scheduler_socket("a"))
        eventually(lambda: ("activate", 0) in lanes.calls)
        scheduler.stop()
        eventually(lambda: ("close", 0) in lanes.calls)
        lanes.opened.clear()

    attacher()
    attach_and_lose()
    gc.collect()
    gc.disable()
    try:
        num_open = len(os.listdir("/proc/self/fd"))
        for _ in range(16):
            attach_and_lose()
        # Some are gRPC's own, for as long as it likes.
        eventually(lambda: len(os.listdir("/proc/self/fd")) < num_open + 8)
    finally:
        gc.enable()
