"""Who is followed: the rules in any order of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from specsched_executor.attach.election import Election, Member, SwitchReason, Transition
from specsched_protocol.v1 import scheduler_pb2 as pb

NAMES = ("a", "b", "c", "d")


def equally_fit(member: Member) -> tuple[float, ...] | None:
    return (0.0,)


def join(election: Election, lane: int, name: str) -> None:
    transition = election.join(lane, name)
    if transition is not None:
        election.commit(transition)


def leave(election: Election, name: str) -> None:
    member = next(each for each in election.members if each.name == name)
    transition = election.leave(member, equally_fit)
    if transition is not None:
        election.commit(transition)


def promote(election: Election, name: str, reason: SwitchReason = SwitchReason.PROMOTED) -> None:
    member = next(each for each in election.members if each.name == name)
    election.commit(Transition(member, reason))


def active(election: Election) -> str | None:
    return election.active.name if election.active else None


events = st.lists(
    st.tuples(st.sampled_from(("join", "leave", "promote", "garbage")), st.sampled_from(NAMES)),
    max_size=40,
)


@given(events)
def test_somebody_is_followed_whenever_a_shadow_is_there(script):
    election, present = Election(), {}
    for lane, (event, name) in enumerate(script):
        if event == "join" and name not in present:
            present[name] = lane
            join(election, lane, name)
        elif name not in present:
            continue
        elif event == "leave":
            del present[name]
            leave(election, name)
        elif event == "promote":
            promote(election, name)
            assert election.elected == active(election) == name
        elif event == "garbage" and active(election) != name:
            promote(election, name, SwitchReason.GARBAGE)
        assert {member.name for member in election.members} == set(present)
        assert election.active is None or election.active in election.members
        fit = [m for m in election.members if m.role == pb.LANE_ROLE_SHADOW]
        assert (election.active is not None) >= bool(fit)


def test_promotion_outlives_a_time_without_anybody():
    election = Election()
    join(election, 0, "a")
    join(election, 1, "b")
    promote(election, "b")
    leave(election, "a")
    leave(election, "b")
    assert (active(election), election.elected) == (None, "b")
    join(election, 2, "a")
    assert (active(election), election.elected) == ("a", "b")
    join(election, 3, "b")
    assert (active(election), election.elected) == ("b", "b")
    assert election.num_switches[SwitchReason.STAND_IN] == 1
    assert election.num_switches[SwitchReason.RETURNED] == 1


def test_crashed_scheduler_does_not_take_over_from_its_successor():
    election = Election()
    join(election, 0, "a")
    join(election, 1, "b")
    leave(election, "a")
    assert election.elected == "b"
    join(election, 2, "a")
    assert active(election) == "b"


def test_failing_scheduler_is_suspended_until_promoted():
    election = Election()
    join(election, 0, "a")
    join(election, 1, "b")
    promote(election, "b", SwitchReason.LIVELOCKED)
    failed = election.members[0]
    assert election.role(failed) == pb.LANE_ROLE_SUSPENDED
    leave(election, "b")
    assert active(election) is None  # better the fallback than one that just failed
    promote(election, "a")
    assert election.role(failed) == pb.LANE_ROLE_ACTIVE


def test_best_shadow_is_the_fittest_then_the_oldest():
    election = Election()
    for lane, name in enumerate(NAMES):
        join(election, lane, name)
    worth = {"b": (0.0, -1.0), "c": (0.0, -0.5), "d": (0.0, -0.5)}
    assert election.best_shadow(lambda m: worth[m.name]).name == "c"
    assert election.best_shadow(lambda m: None) is None
