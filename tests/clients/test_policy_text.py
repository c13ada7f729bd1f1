"""The text form of a policy, as written for the command line and as the scheduler reads it."""

from __future__ import annotations

import pytest
from specsched_client import InvalidRequestError
from specsched_client._policy import to_policy_spec
from specsched_protocol.policy_text import policy_text
from specsched_protocol.v1 import plan_pb2
from specsched_scheduler.decision.errors import PolicyError
from specsched_scheduler.decision.wire import policy_from_message, policy_to_message


@pytest.mark.parametrize(
    ("text", "understood"),
    [
        ("throughput", "throughput"),
        (" greedy-causal ", "greedy-causal"),
        ("off()", "off"),
        ("fixed(3)", "fixed(k=3)"),
        ("fixed( k = 3 )", "fixed(k=3)"),
        ("threshold(0.25)", "threshold(p=0.25)"),
    ],
)
def test_the_scheduler_understands_what_the_client_reads(text: str, understood: str) -> None:
    built = policy_from_message(to_policy_spec(text))
    assert policy_text(policy_to_message(built)) == understood


def test_text_survives_a_round_trip() -> None:
    spec = plan_pb2.PolicySpec(name="slo", parameters={"ms": 12.5, "alpha": 1e-9})
    assert to_policy_spec(policy_text(spec)) == spec
    assert to_policy_spec(spec) is spec


@pytest.mark.parametrize(
    "text", ["", "3", "fixed(3", "fixed(x)", "fixed(k=)", "fixed(k=nan)", "fixed(1,)", "a b"]
)
def test_other_forms_are_refused_with_the_accepted_one(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="accepted: NAME"):
        to_policy_spec(text)


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="k is given twice"):
        to_policy_spec("fixed(k=1, k=2)")


def test_the_scheduler_judges_names_and_places() -> None:
    with pytest.raises(PolicyError, match="2 values given"):
        policy_from_message(to_policy_spec("fixed(1, 2)"))
    with pytest.raises(PolicyError, match="'j'"):
        policy_from_message(to_policy_spec("fixed(j=1)"))
