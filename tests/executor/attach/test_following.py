"""Switches that are wished for at the same time, and schedulers that fail meanwhile."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
from specsched_executor.attach.endpoints import SchedulerEndpoint
from specsched_executor.attach.following import Following
from specsched_executor.attach.session import AttachSession
from specsched_executor.attach.supervision import SupervisionConfig
from specsched_protocol.plan import FallbackReason
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from structlog.testing import capture_logs

from tests.executor.attach.support import FACTS, FAST, RecordingLanes

CONFIG = SupervisionConfig()


class Session(AttachSession):
    """One that is attached and whose peer only ever listens."""

    def __init__(self, name: str, lanes: RecordingLanes) -> None:
        endpoint = SchedulerEndpoint(name, f"unix:/nowhere/{name}.sock", is_local=True)
        offer = lanes.open_lane()
        super().__init__(endpoint, FACTS, offer, FAST, lambda: lanes.run_inline(offer.lane))
        self.replies: list[pb.LaneReply] = []
        self.learns = False
        self.last_heard_ns = time.monotonic_ns()

    def has(self, feature: pb.Feature.ValueType) -> bool:
        return self.learns and feature == pb.FEATURE_LEARNED_STATE

    def send_lane_reply(self, reply: pb.LaneReply) -> None:
        self.replies.append(reply)


class Rig:
    def __init__(self) -> None:
        self.lanes = RecordingLanes()
        self.following = Following(self.lanes, CONFIG)
        self.sessions: dict[str, Session] = {}
        self._ids = itertools.count(1)

    def join(self, *names: str, learns: bool = False) -> None:
        """learns: hands over what was learned, which takes until `rig.handed_over`."""
        for name in names:
            self.sessions[name] = Session(name, self.lanes)
            self.sessions[name].learns = learns
            self.following.join(self.sessions[name])

    def handed_over(self, name: str) -> None:
        self.following.state_taken(self.sessions[name], "")

    def leave(self, name: str) -> None:
        self.following.leave(self.sessions.pop(name), "killed")

    def wish(
        self, name: str, wish: pb.LaneWish.ValueType, *, stays: bool = False
    ) -> Callable[[], pb.LaneReply]:
        """Send it; what is returned gives the answer once there is one."""
        session, number = self.sessions[name], next(self._ids)
        epoch = session.offer.epoch
        request = pb.LaneRequest(request_id=number, wish=wish, epoch=epoch, stays=stays)
        self.following.request(session, request)

        def answer() -> pb.LaneReply:
            (reply,) = (each for each in session.replies if each.request_id == number)
            return reply

        return answer

    def promote(self, name: str) -> Callable[[], pb.LaneReply]:
        return self.wish(name, pb.LANE_WISH_ACTIVATE)

    def drain(self, name: str, *, stays: bool = False) -> Callable[[], pb.LaneReply]:
        """stays: by hand, not because it ends."""
        return self.wish(name, pb.LANE_WISH_DRAIN, stays=stays)

    def engine_switches(self) -> None:
        """The engine found a plan of the target, and the desk sees it."""
        assert self.lanes.begun is not None
        self.lanes.begun.step_id = 50
        self.lanes.begun = None
        self.following.tick()

    def fail(self, name: str, reason: FallbackReason = FallbackReason.LATE) -> None:
        """Faults enough to be given up if it is followed, while its stream lives."""
        health = self.lanes.lane(self.sessions[name].offer.lane).health
        now_ns = time.monotonic_ns()
        for number in range(CONFIG.min_fault_run):
            health.fault(reason, now_ns + number * int(CONFIG.failover_after_ms * 1e6))
        self.sessions[name].last_heard_ns = health.last_fault_ns

    def decide(self, name: str, number: int = 1) -> None:
        for _ in range(number):
            self.lanes.lane(self.sessions[name].offer.lane).health.sound()

    @property
    def active(self) -> str:
        return self.following.active_name

    def role(self, name: str) -> pb.LaneRole.ValueType:
        return next(i.role for i in self.following.infos() if i.scheduler_name == name)

    def given_up_for(self, name: str) -> str:
        infos = self.following.infos()
        return next(i.to_message().given_up_for for i in infos if i.scheduler_name == name)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_two_promotions_are_made_in_turn_and_each_tells_whom_it_replaced(rig: Rig):
    rig.join("a", "b", "c")
    first, second = rig.promote("b"), rig.promote("c")
    rig.engine_switches()
    rig.following.tick()
    rig.engine_switches()
    assert (first().previous_scheduler, second().previous_scheduler) == ("a", "b")
    assert (rig.active, rig.following.elected_name) == ("c", "c")


def test_a_switch_tells_by_what_policies_steps_were_and_are_decided(rig: Rig):
    rig.join("a", "b")
    rig.sessions["a"].policy = plan_pb2.PolicySpec(name="half", parameters={"share": 0.3})
    rig.sessions["b"].policy = plan_pb2.PolicySpec(name="throughput")
    promoted = rig.promote("b")
    with capture_logs() as logs:
        rig.engine_switches()
    assert promoted().previous_policy == rig.sessions["a"].policy
    assert promoted().active_policy == rig.sessions["b"].policy
    (switched,) = (each for each in logs if each["event"] == "switched scheduler")
    assert (switched["previous_policy"], switched["policy"]) == ("half(share=0.3)", "throughput")


def test_drain_behind_a_promotion_does_not_undo_it(rig: Rig):
    rig.join("a", "b", "c")
    rig.fail("b")  # so that c would succeed a
    promotion, drain = rig.promote("b"), rig.drain("a")
    rig.engine_switches()
    rig.following.tick()
    assert promotion().done
    assert drain().done
    assert (rig.active, drain().active_scheduler) == ("b", "b")
    assert rig.role("a") == pb.LANE_ROLE_DRAINING


def test_drain_of_the_promoted_takes_the_promotion_back(rig: Rig):
    rig.join("a", "b")
    promotion, drain = rig.promote("b"), rig.drain("b")
    assert (promotion().done, promotion().reason) == (False, "b drains")
    assert drain().done
    rig.following.tick()
    assert (rig.active, rig.role("b")) == ("a", pb.LANE_ROLE_DRAINING)
    assert rig.lanes.calls[-1] == ("activate", 0)


def test_one_that_was_drained_by_hand_takes_over_again(rig: Rig):
    rig.join("a", "b")
    first = rig.drain("a", stays=True)
    rig.engine_switches()
    assert first().done
    assert (rig.active, rig.role("a")) == ("b", pb.LANE_ROLE_SHADOW)
    second = rig.drain("b", stays=True)
    rig.engine_switches()
    assert second().done
    assert (rig.active, rig.role("b")) == ("a", pb.LANE_ROLE_SHADOW)
    rig.leave("a")
    assert rig.active == "b"


def test_one_that_drains_because_it_ends_is_not_chosen(rig: Rig):
    rig.join("a", "b")
    rig.drain("a")
    rig.engine_switches()
    refused = rig.drain("b", stays=True)
    assert refused().reason == "no other scheduler is fit to take over"
    assert rig.active == "b"


def test_shadow_that_is_drained_by_hand_loses_its_promotion_and_stays_fit(rig: Rig):
    rig.join("a", "b")
    promotion = rig.promote("b")
    assert rig.drain("b", stays=True)().done
    assert promotion().reason == "b drains"
    assert (rig.active, rig.role("b")) == ("a", pb.LANE_ROLE_SHADOW)
    rig.leave("a")
    assert rig.active == "b"


def test_one_that_was_switched_to_drains_as_the_active_one(rig: Rig):
    rig.join("a", "b")
    promotion = rig.promote("b")
    assert rig.lanes.begun is not None
    rig.lanes.begun.step_id = 50  # the engine was faster than the request
    drain = rig.drain("b")
    assert promotion().done
    rig.engine_switches()
    assert drain().done
    assert (rig.active, rig.role("b")) == ("a", pb.LANE_ROLE_DRAINING)


def test_promotion_outlives_the_return_of_the_one_elected_before(rig: Rig):
    rig.join("a")
    rig.leave("a")
    rig.join("b", "c")
    promotion = rig.promote("c")
    rig.join("a")
    rig.engine_switches()
    rig.following.tick()
    assert promotion().done
    assert (rig.active, rig.following.elected_name) == ("c", "c")


def test_promotion_of_a_stand_in_outlives_the_return_that_is_under_way(rig: Rig):
    rig.join("a")
    rig.leave("a")
    rig.join("b", learns=True)
    rig.join("a", learns=True)  # elected, so it is followed again once it knows what b learned
    promotion = rig.promote("b")
    assert promotion().done
    rig.handed_over("a")
    rig.following.tick()
    assert rig.lanes.begun is None
    assert (rig.active, rig.following.elected_name) == ("b", "b")


def test_promoted_one_takes_over_when_the_active_one_dies_meanwhile(rig: Rig):
    rig.join("a", "b", "c")
    promotion = rig.promote("c")
    rig.leave("a")
    assert promotion().done
    assert (rig.active, rig.following.elected_name) == ("c", "c")


def test_promotion_of_one_that_dies_fails_and_changes_nothing(rig: Rig):
    rig.join("a", "b")
    promotion = rig.promote("b")
    session = rig.sessions["b"]
    rig.leave("b")
    rig.sessions["b"] = session
    assert (promotion().done, promotion().reason) == (False, "b is gone: killed")
    assert rig.active == "a"


def test_request_of_another_epoch_is_refused(rig: Rig):
    rig.join("a", "b")
    session = rig.sessions["b"]
    request = pb.LaneRequest(request_id=1, wish=pb.LANE_WISH_ACTIVATE, epoch=99)
    rig.following.request(session, request)
    assert session.replies[0].reason == "the request is of epoch 99, this is 2"


def test_requests_that_wait_are_bounded(rig: Rig):
    rig.join("a", "b")
    waiting = [rig.promote("b") for _ in range(16)]
    assert rig.promote("b")().reason == "16 requests are waiting"
    rig.engine_switches()
    for _ in waiting:
        rig.following.tick()
    assert all(each().done for each in waiting)


def test_failing_scheduler_is_given_up_and_everybody_can_see_why(rig: Rig):
    rig.join("a", "b")
    rig.fail("a")
    rig.following.tick()
    assert rig.lanes.begun is not None
    assert rig.lanes.begun.yields
    rig.engine_switches()
    assert (rig.active, rig.role("a")) == ("b", pb.LANE_ROLE_SUSPENDED)
    assert rig.given_up_for("a") == "livelocked"
    rig.decide("a", CONFIG.min_sound_run)
    rig.following.tick()
    assert (rig.role("a"), rig.given_up_for("a")) == (pb.LANE_ROLE_SHADOW, "livelocked")
    rig.promote("a")
    rig.engine_switches()
    assert (rig.active, rig.given_up_for("a")) == ("a", "")


def test_scheduler_that_decides_again_is_kept(rig: Rig):
    rig.join("a", "b")
    rig.fail("a")
    rig.following.tick()
    rig.decide("a")
    rig.following.tick()
    assert rig.active == "a"
    assert rig.lanes.calls[-1] == ("activate", 0)
    assert rig.following.num_switches() == {"first": 1}


def test_with_nobody_left_one_that_recovers_is_followed(rig: Rig):
    rig.join("a", "b")
    rig.fail("a", FallbackReason.IMPOSSIBLE)
    rig.following.tick()
    rig.engine_switches()
    rig.leave("b")
    rig.following.tick()
    assert rig.active == ""
    rig.decide("a", CONFIG.min_sound_run)
    rig.following.tick()
    assert (rig.active, rig.following.elected_name) == ("a", "b")


def test_requests_that_wait_for_what_was_learned_are_bounded_too(rig: Rig):
    rig.join("a", "b", learns=True)
    rig.handed_over("b")
    waiting = [rig.promote("b") for _ in range(16)]
    assert rig.promote("b")().reason == "16 requests are waiting"
    rig.handed_over("b")
    rig.engine_switches()
    for _ in waiting:
        rig.following.tick()
    assert all(each().done for each in waiting)
