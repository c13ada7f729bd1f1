from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.versions import VersionRange
from specsched_scheduler.service.errors import InvalidMessageError, PeerRefusedError
from specsched_scheduler.service.negotiation import check_hello, negotiate_protocol

ranges = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda t: VersionRange(*sorted(t)))


@given(ranges, ranges)
def test_highest_common_version_is_chosen_or_both_ranges_are_named(ours, theirs):
    common = set(range(ours.min_version, ours.max_version + 1)) & set(
        range(theirs.min_version, theirs.max_version + 1)
    )
    if common:
        assert negotiate_protocol(ours, theirs) == max(common)
        return
    with pytest.raises(PeerRefusedError) as caught:
        negotiate_protocol(ours, theirs)
    assert str(ours) in str(caught.value)
    assert str(theirs) in str(caught.value)


@pytest.mark.parametrize("theirs", [VersionRange(0, 0), VersionRange(3, 2), VersionRange(0, 5)])
def test_empty_or_unset_range_is_invalid(theirs):
    with pytest.raises(InvalidMessageError, match=str(theirs)):
        negotiate_protocol(VersionRange(1, 1), theirs)


def _hello(**changes: object) -> pb.Hello:
    model = pb.ModelFacts(max_requests=4, max_draft_tokens=7)
    hello = pb.Hello(boot_id=bytes(16), model=model, capture_sizes=[1, 2, 4])
    hello.MergeFrom(pb.Hello(**{k: v for k, v in changes.items() if k != "boot_id"}))
    if "boot_id" in changes:
        hello.boot_id = changes["boot_id"]
    return hello


def test_sound_hello_passes():
    check_hello(_hello())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"boot_id": b"short"}, r"boot_id has 5 bytes, accepted: 16"),
        ({"model": pb.ModelFacts(max_requests=70_000)}, r"max_requests = 70000"),
        ({"model": pb.ModelFacts(max_draft_tokens=65)}, r"max_draft_tokens = 65"),
        ({"capture_sizes": [4]}, r"capture_sizes = \[1, 2, 4, 4\]"),
        ({"epoch": 1 << 63}, r"hello.epoch = 9223372036854775808, accepted: 0 to"),
    ],
)
def test_impossible_hello_names_the_field(changes, named):
    with pytest.raises(InvalidMessageError, match=named):
        check_hello(_hello(**changes))
