"""Draft lengths in the document of learned state.

    {"policy": "throughput", "survivals": [[k], ...],
     "loads": [{"log2_requests": 4, "draft_tokens": 2, "probe_period": 64,
                "positions": [{"gain": ..., "extra": ..., "evidence": ..., "num_seen": ...}] (k)}]}

The numbers are those of decision.draft_length: gain and extra of a position are averages over
`evidence` request-steps, of `num_seen` in which it was ever drafted. survivals: of typical drafts,
from the least to the most certain, the chance to be accepted up to each position.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from specsched_scheduler.decision.codes import PolicyCode
from specsched_scheduler.decision.draft_length import NUM_QUANTILES, LoadState
from specsched_scheduler.decision.draft_length.loads import (
    MAX_PROBE_PERIOD,
    MIN_PROBE_PERIOD,
    NUM_LOADS,
)

__all__ = ["DraftLengthPart", "LoadPart", "PositionPart", "Strict"]

_MAX_LOG2_REQUESTS = NUM_LOADS - 1
_MAX_EXTRA = 1e3
_POLICIES = tuple(code.name.lower() for code in PolicyCode)


def _check_policy(name: str) -> str:
    if name not in _POLICIES:
        raise ValueError(f"accepted: {', '.join(_POLICIES)}")
    return name


_Share = Annotated[float, Field(ge=0, le=1)]
_RequestSteps = Annotated[float, Field(ge=0, le=2**53)]


class Strict(BaseModel):
    """A part of the document: nothing that is not known, no infinity, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PositionPart(Strict):
    """One draft position at one batch size."""

    gain: _Share
    extra: Annotated[float, Field(ge=-_MAX_EXTRA, le=_MAX_EXTRA)]
    evidence: _RequestSteps
    num_seen: _RequestSteps


class LoadPart(Strict):
    """Batches of about 2^log2_requests."""

    log2_requests: Annotated[int, Field(ge=0, le=_MAX_LOG2_REQUESTS)]
    draft_tokens: Annotated[int, Field(ge=0, le=64)]
    probe_period: Annotated[int, Field(ge=MIN_PROBE_PERIOD, le=MAX_PROBE_PERIOD)]
    positions: tuple[PositionPart, ...]

    @classmethod
    def of(cls, load: LoadState) -> LoadPart:
        """The part that says what `load` does."""
        gains, extras = load.gain.clip(0, 1), load.extra.clip(-_MAX_EXTRA, _MAX_EXTRA)
        columns = (each.tolist() for each in (gains, extras, load.evidence, load.seen))
        return cls(
            log2_requests=load.log2_requests,
            draft_tokens=load.draft_tokens,
            probe_period=load.probe_period,
            positions=tuple(
                PositionPart(gain=gain, extra=extra, evidence=evidence, num_seen=seen)
                for gain, extra, evidence, seen in zip(*columns, strict=True)
            ),
        )

    def state(self) -> LoadState:
        """The same for a DraftLength."""
        rows = [(p.gain, p.extra, p.evidence, p.num_seen) for p in self.positions]
        columns = np.array(rows, dtype=np.float64).T
        return LoadState(self.log2_requests, self.draft_tokens, self.probe_period, *columns)


class DraftLengthPart(Strict):
    """policy: that the drafts were scheduled by. loads: each batch size once. survivals: none where
    an earlier version kept none."""

    policy: Annotated[str, AfterValidator(_check_policy)]
    loads: Annotated[tuple[LoadPart, ...], Field(max_length=_MAX_LOG2_REQUESTS + 1)]
    survivals: tuple[tuple[_Share, ...], ...] = ()

    @classmethod
    def of(
        cls, policy: PolicyCode, loads: Iterable[LoadState], survivals: npt.NDArray[np.float64]
    ) -> DraftLengthPart:
        """The part that says what `loads` and Survivals.quantiles do."""
        return cls(
            policy=policy.name.lower(),
            loads=tuple(LoadPart.of(each) for each in loads),
            survivals=tuple(tuple(row) for row in survivals.clip(0, 1).tolist()),
        )

    def states(self) -> list[LoadState]:
        """The same for a DraftLength."""
        return [each.state() for each in self.loads]

    def check(self, max_draft_tokens: int) -> None:
        """Raises ValueError where it cannot be of an executor of this draft length."""
        self._check_survivals(max_draft_tokens)
        seen = set()
        for index, load in enumerate(self.loads):
            where = f"draft_length.loads.{index}"
            if load.log2_requests in seen:
                raise ValueError(f"{where}.log2_requests is {load.log2_requests} a second time")
            seen.add(load.log2_requests)
            if load.draft_tokens > max_draft_tokens:
                raise ValueError(
                    f"{where}.draft_tokens is {load.draft_tokens}, accepted: up to"
                    f" max_draft_tokens = {max_draft_tokens}"
                )
            if len(load.positions) != max_draft_tokens:
                raise ValueError(
                    f"{where}.positions has {len(load.positions)} values, accepted:"
                    f" max_draft_tokens = {max_draft_tokens}"
                )

    def _check_survivals(self, max_draft_tokens: int) -> None:
        if len(self.survivals) not in {0, NUM_QUANTILES}:
            raise ValueError(
                f"draft_length.survivals has {len(self.survivals)} drafts, accepted:"
                f" {NUM_QUANTILES}"
            )
        for index, row in enumerate(self.survivals):
            if len(row) != max_draft_tokens:
                raise ValueError(
                    f"draft_length.survivals.{index} has {len(row)} values, accepted:"
                    f" max_draft_tokens = {max_draft_tokens}"
                )
