"""What is sent after the first look is what changed, and puts together the same state."""

from __future__ import annotations

import json

from specsched_scheduler.page.frame import Frame, changes, event


def payload(seconds, sizes=(), *, boot_id="ab", num_attached=1, **facts):
    decisions = {"num_decisions": 1, "seconds": list(seconds), "sizes": list(sizes)}
    executor = {"slot": 0, "boot_id": boot_id, "decisions": decisions}
    return {"num_attached": num_attached, "executors": [executor], **facts}


def second(time_s, num_decisions=1):
    return {"time_s": time_s, "num_decisions": num_decisions}


def size(num_requests, num_decisions=1):
    return {"num_requests": num_requests, "num_decisions": num_decisions}


def test_an_event_is_one_line_of_data_and_a_blank_one():
    assert event("whole", {"a": "x\ny"}, 7) == b'event: whole\nid: 7\ndata: {"a": "x\\ny"}\n\n'
    assert event("beat", {}) == b"event: beat\ndata: {}\n\n"


def test_only_what_is_new_or_different_is_sent():
    before = payload([second(1), second(2)], [size(1), size(4)], policy="off")
    after = payload([second(2, 5), second(3)], [size(1), size(2), size(4, 9)], policy="fixed(1)")
    told = changes(before, after)
    (decisions,) = [each["decisions"] for each in told["executors"]]
    assert decisions["seconds"] == [second(2, 5), second(3)]
    assert decisions["sizes"] == [size(2), size(4, 9)]
    assert told["policy"] == "fixed(1)"
    assert after == payload(
        [second(2, 5), second(3)], [size(1), size(2), size(4, 9)], policy="fixed(1)"
    )


def test_the_history_of_another_attachment_is_not_mixed_in():
    before = payload([second(1)])
    assert changes(before, payload([second(1)], boot_id="cd")) is None
    assert changes(before, payload([second(1)], num_attached=2)) is None
    assert changes(before, payload([]) | {"executors": []}) is None


def test_a_first_frame_has_no_change_and_the_next_has_both():
    first = Frame.after(None, 1, payload([second(1)]))
    assert first.change is None
    next_one = Frame.after(first, 2, payload([second(1), second(2)]))
    assert next_one.change is not None
    assert len(next_one.change) < len(next_one.whole)
    name, identity, data = next_one.change.decode().strip().split("\n")
    assert (name, identity) == ("event: change", "id: 2")
    told = json.loads(data.removeprefix("data: "))
    assert told["executors"][0]["decisions"]["seconds"] == [second(2)]
