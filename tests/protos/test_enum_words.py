"""Enum values are told in words, also those of a later version."""

from __future__ import annotations

import pytest
from specsched_protocol.enum_words import enum_word
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb


@pytest.mark.parametrize(
    ("enum", "value", "word"),
    [
        (pb.LaneRole, pb.LANE_ROLE_ACTIVE, "active"),
        (pb.Transport, pb.TRANSPORT_SHARED_MEMORY, "shared_memory"),
        (pb.Feature, pb.FEATURE_LANE_CONTROL, "lane_control"),
        (plan_pb2.ModelState, plan_pb2.MODEL_STATE_NO_MODEL, "no_model"),
        (plan_pb2.DecisionFlag, plan_pb2.DECISION_FLAG_FLAT, "flat"),
        (pb.LaneRole, 99, "unknown 99"),
    ],
)
def test_a_value_is_told_without_the_name_of_its_enum(enum, value, word):
    assert enum_word(enum.DESCRIPTOR, value) == word
