"""The layout of the previous release is the present one, word by word.

A change of it raises the ABI version, and then both must be written and read: this test says so.
"""

from __future__ import annotations

import pytest
from specsched_protocol.shm import RegionShape, lane, layout, plan_arrays, report_ring

from tests.previous_protocol import LAYOUT


def test_abi_version_is_the_same():
    assert LAYOUT["abi_version"] == layout.ABI_VERSION


@pytest.mark.parametrize("shape", LAYOUT["executor_layout"])
def test_every_offset_is_the_same(shape: str):
    requests, drafts, slots = map(int, shape.split("x"))
    now = layout.executor_layout(RegionShape(requests, drafts, slots))._asdict()
    assert list(now.items()) == list(LAYOUT["executor_layout"][shape].items())


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (layout, LAYOUT["layout"]),
        (lane, LAYOUT["decision_words"]),
        (plan_arrays, LAYOUT["request_and_confidence_words"]),
        (report_ring, LAYOUT["report_words"]),
    ],
)
def test_every_word_is_where_it_was(module, names: dict[str, int]):
    assert {name: getattr(module, name) for name in names} == names
