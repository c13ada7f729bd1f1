"""Learned state as one versioned JSON document.

    {"format": "specsched-learned-state", "version": 3,
     "entries": [{"model": ..., "drafter": ..., "max_draft_tokens": k, "cost_fingerprint": ...,
                  "calibration": {"greedy": {"temperature": [k], "intercept": [k], "num_rows": n},
                                  "sampled": {...}},
                  "cost": {"offset_ms": ..., "scale": ..., "ms_per_context_token": ...,
                           "ratios": [{"tokens": ..., "ratio": ..., "num_samples": ...}],
                           "draft_ratios": [{"draft_tokens": 0 for full, "ratio": ...}]},
                  "draft_length": {"policy": ..., "loads": [see learning.draft_length_part],
                                   "survivals": [[k], ...]}}]}

An entry is for one kind of executor. Its calibration applies wherever model, drafter and k are the
same (an empty name stands for any); its cost only where the profile was taken under the same
fingerprint, and its draft lengths only where the policy is the same as well. Version 1, without
draft lengths, and version 2, without survivals, are read too. An entry may have a `succession`:
some schedulers write it to version 3, nothing needs it, and it is read past.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.learning.calibration._logistic import (
    MAX_INTERCEPT,
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
)
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.cost.corrector import CostCorrection
from specsched_scheduler.learning.draft_length_part import DraftLengthPart, Strict
from specsched_scheduler.learning.errors import StateError
from specsched_scheduler.validation import problems

__all__ = [
    "CalibrationPart",
    "ClassCalibration",
    "CostPart",
    "DraftRatio",
    "Entry",
    "LearnedState",
    "SizeRatio",
    "calibration_part",
    "load_state",
    "read_state",
    "write_state",
]


_Temperature = Annotated[float, Field(ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE)]
_Intercept = Annotated[float, Field(ge=-MAX_INTERCEPT, le=MAX_INTERCEPT)]
_Ratio = Annotated[float, Field(ge=1e-3, le=1e3)]
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Name = Annotated[str, Field(max_length=4096)]  # as long as a path may be
_ReadPast = Annotated[None, BeforeValidator(lambda _: None), Field(exclude=True)]


class ClassCalibration(Strict):
    """One sampling class. num_rows: that taught it; for information."""

    temperature: tuple[_Temperature, ...]
    intercept: tuple[_Intercept, ...]
    num_rows: _Count = 0


class CalibrationPart(Strict):
    """Both sampling classes."""

    greedy: ClassCalibration
    sampled: ClassCalibration


class SizeRatio(Strict):
    """Measured to predicted cost of one profiled size."""

    tokens: Annotated[int, Field(ge=1, le=2**20)]
    ratio: _Ratio
    num_samples: _Count = 0


class DraftRatio(Strict):
    """Measured to profiled cost of drafts of one length; 0: full."""

    draft_tokens: Annotated[int, Field(ge=0, le=64)]
    ratio: _Ratio


class CostPart(Strict):
    """See learning.cost.corrector."""

    offset_ms: Annotated[float, Field(ge=-1e6, le=1e6)]
    scale: Annotated[float, Field(ge=0, le=1e3)]
    ms_per_context_token: Annotated[float, Field(ge=0, le=1e3)]
    ratios: tuple[SizeRatio, ...] = ()
    draft_ratios: tuple[DraftRatio, ...] = ()

    @classmethod
    def of(cls, correction: CostCorrection) -> CostPart:
        """The part that says what `correction` does."""
        return cls(
            offset_ms=correction.offset_ms,
            scale=correction.scale,
            ms_per_context_token=correction.ms_per_context_token,
            ratios=tuple(
                SizeRatio(tokens=size, ratio=ratio, num_samples=correction.num_samples[size])
                for size, ratio in sorted(correction.ratios.items())
            ),
            draft_ratios=tuple(
                DraftRatio(draft_tokens=length, ratio=ratio)
                for length, ratio in sorted(correction.draft_ratios.items())
            ),
        )

    def correction(self) -> CostCorrection:
        """The same for a CostCorrector."""
        return CostCorrection(
            offset_ms=self.offset_ms,
            scale=self.scale,
            ms_per_context_token=self.ms_per_context_token,
            ratios={each.tokens: each.ratio for each in self.ratios},
            num_samples={each.tokens: each.num_samples for each in self.ratios},
            draft_ratios={each.draft_tokens: each.ratio for each in self.draft_ratios},
        )


class Entry(Strict):
    """What was learned of one kind of executor."""

    model: _Name
    drafter: _Name
    max_draft_tokens: Annotated[int, Field(ge=1, le=64)]
    cost_fingerprint: _Name = ""
    calibration: CalibrationPart
    cost: CostPart | None = None
    draft_length: DraftLengthPart | None = None
    succession: _ReadPast = None

    @model_validator(mode="after")
    def _check_lengths(self) -> Entry:
        for name in ("greedy", "sampled"):
            part: ClassCalibration = getattr(self.calibration, name)
            for field in ("temperature", "intercept"):
                length = len(getattr(part, field))
                if length != self.max_draft_tokens:
                    raise ValueError(
                        f"calibration.{name}.{field} has {length} values, accepted:"
                        f" max_draft_tokens = {self.max_draft_tokens}"
                    )
        if self.draft_length is not None:
            self.draft_length.check(self.max_draft_tokens)
        return self

    @property
    def kind(self) -> tuple[str, str, int, str]:
        """What tells entries apart."""
        return self.model, self.drafter, self.max_draft_tokens, self.cost_fingerprint

    @property
    def num_rows(self) -> tuple[int, int]:
        """Drafts that taught its calibration, by sampling class."""
        return self.calibration.greedy.num_rows, self.calibration.sampled.num_rows

    def learned_calibration(self) -> Calibration:
        """Its calibration for decisions."""
        parts = [self.calibration.greedy, self.calibration.sampled]
        return Calibration(
            np.array([part.temperature for part in parts], dtype=np.float64),
            np.array([part.intercept for part in parts], dtype=np.float64),
        )


class LearnedState(Strict):
    """The whole document."""

    format: Literal["specsched-learned-state"] = "specsched-learned-state"
    version: Literal[1, 2, 3] = 3
    entries: tuple[Entry, ...] = ()

    def entry_of(
        self, model: str, drafter: str, max_draft_tokens: int, cost_fingerprint: str = ""
    ) -> Entry | None:
        """The entry whose calibration applies, the one of this fingerprint if there is one; of
        several the last."""
        found = [
            entry
            for entry in self.entries
            if entry.model in (model, "")
            and entry.drafter in (drafter, "")
            and entry.max_draft_tokens == max_draft_tokens
        ]
        exact = [entry for entry in found if entry.cost_fingerprint == cost_fingerprint]
        best = exact or found
        return best[-1] if best else None

    def merged(self, entries: Iterable[Entry]) -> LearnedState:
        """The same with these as well, in the place of others of the same kind."""
        by_kind = {entry.kind: entry for entry in self.entries}
        for entry in entries:
            by_kind.pop(entry.kind, None)
            by_kind[entry.kind] = entry
        return LearnedState(entries=tuple(by_kind.values()))


def calibration_part(calibration: Calibration, num_rows: tuple[int, ...]) -> CalibrationPart:
    """Its document form. num_rows: by sampling class."""
    greedy, sampled = (
        ClassCalibration(
            temperature=tuple(calibration.temperature[of_class].tolist()),
            intercept=tuple(calibration.intercept[of_class].tolist()),
            num_rows=num_rows[of_class],
        )
        for of_class in (GREEDY, SAMPLED)
    )
    return CalibrationPart(greedy=greedy, sampled=sampled)


def read_state(text: str | bytes) -> LearnedState:
    """Check and parse a document. Raises StateError naming each field that is wrong, its value and
    what is accepted."""
    try:
        return LearnedState.model_validate_json(text)
    except ValidationError as error:
        raise StateError(
            "; ".join(
                f"{'.'.join(map(str, place)) or 'document'}{value}: {accepted}"
                for place, value, accepted in problems(error)
            )
        ) from error


def load_state(path: Path) -> LearnedState:
    """Read a file. Raises StateError that names it, for one that cannot be read too."""
    try:
        return read_state(path.read_bytes())
    except OSError as error:
        raise StateError(f"{path}: {error.strerror}") from error
    except StateError as error:
        raise StateError(f"{path}: {error}") from error


def write_state(state: LearnedState) -> str:
    """The document as JSON text."""
    return state.model_dump_json(indent=2) + "\n"
