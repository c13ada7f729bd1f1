"""Plan requests as JSON: what `specsched plan` reads.

Types and unknown keys are checked here, values by `decision.wire`, the same as for the `Plan` call.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from specsched_protocol.v1 import plan_pb2

from specsched_scheduler.decision.errors import DecisionError
from specsched_scheduler.decision.wire import policy_to_message
from specsched_scheduler.policies import build_policy
from specsched_scheduler.validation import problems

__all__ = ["PlanDocument", "PlanDocumentError", "PlanEntry", "read_plan_document"]

Count = Annotated[int, Field(ge=0, le=0xFFFF_FFFF)]
LargeCount = Annotated[int, Field(ge=0, le=1 << 53)]


class PlanDocumentError(DecisionError):
    """The document is not JSON or not plan requests; the message names each value and its place."""


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One request of a document: where it stands (``""``, ``[3]``), its name if it has one."""

    where: str
    name: str | None
    request: plan_pb2.PlanRequest


@dataclass(frozen=True, slots=True)
class PlanDocument:
    """The requests of a file. is_list: it holds a list, so the answer is one."""

    entries: tuple[PlanEntry, ...]
    is_list: bool


def read_plan_document(text: str) -> PlanDocument:
    """Read one request or a list of them, each bare or as a case `{"name": ..., "request": ...}`.

    Raises PlanDocumentError.
    """
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise PlanDocumentError(f"not JSON: {error}") from error
    if isinstance(content, list):
        entries = [_read_entry(item, f"[{index}]") for index, item in enumerate(content)]
        return PlanDocument(tuple(entries), is_list=True)
    return PlanDocument((_read_entry(content, ""),), is_list=False)


def _read_entry(item: Any, where: str) -> PlanEntry:
    name = None
    if isinstance(item, dict) and "request" in item:
        name = item["name"] if isinstance(item.get("name"), str) else None
        item, where = item["request"], f"{where}.request".lstrip(".")
    try:
        parsed = _Request.model_validate(item)
        return PlanEntry(where, name, parsed.message())
    except ValidationError as error:
        raise PlanDocumentError(_describe(error, where)) from error
    except DecisionError as error:
        raise PlanDocumentError(f"{where}: {error}" if where else str(error)) from error


def _describe(error: ValidationError, where: str) -> str:
    lines = []
    for place, value, accepted in problems(error):
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
        path = (where + "".join(steps)).lstrip(".") or "request"
        lines.append(f"{path}{value}: {accepted}")
    return "; ".join(lines)


# ===================== Schema =====================


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _VerifyCost(_Strict):
    tokens: Count
    ms: list[float]


class _DraftCost(_Strict):
    requests: Count
    ms: list[float]
    draft_tokens: Count | None = None


class _ContextCost(_Strict):
    ms_per_token: float
    profiled_tokens_per_request: float


class _Cost(_Strict):
    verify: list[_VerifyCost]
    capture_limit: Count
    draft: list[_DraftCost] = []
    context: _ContextCost | None = None
    fingerprint: str = ""
    disturbed: bool = False

    def message(self) -> plan_pb2.CostModel:
        """The cost profile as a message."""
        return plan_pb2.CostModel(**self.model_dump(exclude_none=True))


class _RequestState(_Strict):
    confidence: list[float | None] | None = None
    num_draft_tokens: Count | None = None
    samples: bool | None = None
    weight: float | None = None
    context_tokens: LargeCount = 0

    def message(self) -> plan_pb2.RequestState:
        """The request's state as a message; null among the confidences is NaN there."""
        fields = self.model_dump(exclude_none=True)
        values = self.confidence or ()
        fields["confidence"] = [math.nan if value is None else value for value in values]
        return plan_pb2.RequestState(**fields)


class _Request(_Strict):
    max_draft_tokens: Count
    num_other_tokens: Count
    requests: list[_RequestState]
    cost: _Cost
    num_prefill_tokens: Count = 0
    policy: str | None = None
    max_budget: Count | None = None

    def message(self) -> plan_pb2.PlanRequest:
        """The whole request as a message. Raises PolicyError."""
        request = plan_pb2.PlanRequest(
            max_draft_tokens=self.max_draft_tokens,
            num_other_tokens=self.num_other_tokens,
            num_prefill_tokens=self.num_prefill_tokens,
            max_budget=self.max_budget,
            requests=[state.message() for state in self.requests],
            cost=self.cost.message(),
        )
        if self.policy is not None:
            request.policy.CopyFrom(policy_to_message(build_policy(self.policy)))
        return request
