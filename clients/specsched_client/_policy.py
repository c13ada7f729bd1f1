"""Policies as a caller gives them."""

from __future__ import annotations

from specsched_protocol.policy_text import PolicyTextError, parse_policy
from specsched_protocol.v1 import plan_pb2

from specsched_client._errors import InvalidRequestError


def to_policy_spec(policy: str | plan_pb2.PolicySpec) -> plan_pb2.PolicySpec:
    """Read a policy. Raises InvalidRequestError for text of another form.

    Which names and parameters there are, the scheduler judges.
    """
    if isinstance(policy, plan_pb2.PolicySpec):
        return policy
    try:
        return parse_policy(policy)
    except PolicyTextError as error:
        raise InvalidRequestError(str(error)) from error
