"""What the service needs of recording, without pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from google.protobuf.json_format import MessageToJson
from specsched_protocol.plan import StepReport
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.planner import TapedStep
from specsched_scheduler.policies import BuiltPolicy
from specsched_scheduler.trace_config import TraceConfig

__all__ = ["StepRecorder", "TraceConfig", "open_recorder", "trace_metadata"]

_FORMAT_VERSION = 1


class StepRecorder(Protocol):
    """Takes the steps of one attachment; never waits, but for `close`."""

    def describe(self, metadata: Mapping[str, str]) -> None:
        """What the steps observed from now on were decided by."""

    def observe(
        self, steps: Sequence[TapedStep], reports: Sequence[StepReport], num_dropped: int
    ) -> None:
        """Steps that were decided, outcomes of earlier ones, steps that the planner left out."""

    def close(self) -> None:
        """Write what is left."""


def open_recorder(config: TraceConfig, name: str) -> StepRecorder:
    """A recorder for one attachment. Raises ImportError without pyarrow."""
    from .recorder import TraceRecorder

    return TraceRecorder(config, name)


def trace_metadata(hello: pb.Hello, policy: BuiltPolicy) -> dict[str, str]:
    """What a file says of itself."""
    return {
        "format_version": str(_FORMAT_VERSION),
        "executor": hello.executor_name,
        "boot_id": hello.boot_id.hex(),
        "model": hello.model.name,
        "max_draft_tokens": str(hello.model.max_draft_tokens),
        "policy": str(policy),
        "cost": MessageToJson(hello.cost, preserving_proto_field_name=True, indent=None),
    }
