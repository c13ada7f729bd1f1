"""The result of profiling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specsched_protocol.v1 import plan_pb2


@dataclass(frozen=True, slots=True)
class ContextSlope:
    """Extra time per token of context that the step's requests read."""

    ms_per_token: float

    def __post_init__(self) -> None:
        if not self.ms_per_token >= 0.0:
            raise ValueError(f"ms_per_token is {self.ms_per_token}; must be 0 or more")


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Raw samples in ms, and what they were taken with.

    verify: rows of the step -> samples. verify_context_tokens: rows -> context tokens read by the
    requests of the profiled step, all together. draft: drafting requests -> samples of a full
    draft; short_drafts: length -> the same for drafts no longer than that. capture_limit: largest
    captured size; 0 where steps run eagerly at any size, so that costs are interpolated between
    the profiled sizes. fingerprint: see `fingerprint`. is_disturbed: other programs used the cores
    all the while, so that steps are likely cheaper than the samples say; such a one is not kept.
    """

    verify: Mapping[int, tuple[float, ...]]
    verify_context_tokens: Mapping[int, int]
    capture_limit: int
    fingerprint: str
    context: ContextSlope | None = None
    draft: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    short_drafts: Mapping[int, Mapping[int, tuple[float, ...]]] = field(default_factory=dict)
    is_disturbed: bool = False

    def __post_init__(self) -> None:
        if set(self.verify) != set(self.verify_context_tokens):
            raise ValueError("verify and verify_context_tokens name different sizes")
        drafts = [samples for each in self.short_drafts.values() for samples in each.values()]
        for samples in (*self.verify.values(), *self.draft.values(), *drafts):
            if not samples or min(samples) < 0.0:
                raise ValueError(f"samples {samples}; each size needs some, none negative")

    def to_proto(self) -> plan_pb2.CostModel:
        """The message for schedulers.

        A step of n rows may belong to a few requests or to many, and they may have read any
        context; the profiled one says nothing of that. So what its context cost is taken out of the
        samples, and the context term speaks of all context (profiled_tokens_per_request = 0).
        """
        slope = self.context.ms_per_token if self.context else 0.0
        message = plan_pb2.CostModel(
            capture_limit=self.capture_limit,
            fingerprint=self.fingerprint,
            disturbed=self.is_disturbed,
        )
        for rows, samples in sorted(self.verify.items()):
            context_ms = slope * self.verify_context_tokens[rows]
            without_context = [max(ms - context_ms, ms / 10) for ms in samples]
            message.verify.add(tokens=rows, ms=without_context)
        for requests, samples in sorted(self.draft.items()):
            message.draft.add(requests=requests, ms=samples)
        for length, drafts in sorted(self.short_drafts.items()):
            for requests, samples in sorted(drafts.items()):
                message.draft.add(requests=requests, ms=samples, draft_tokens=length)
        if self.context is not None:
            message.context.ms_per_token = slope
            message.context.profiled_tokens_per_request = 0.0
        return message
