"""Compiling what telemetry runs, before it would compile beside served steps."""

from __future__ import annotations

from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.pairing import Classified, DraftedSteps

from .freezing import FreezeWatch
from .outcomes import DraftOutcomes

__all__ = ["warm_up_telemetry"]


def warm_up_telemetry(drafted: DraftedSteps, paired: Classified) -> None:
    """Look at some drafts and at what became of them."""
    FreezeWatch().observe(drafted)
    max_draft_tokens = drafted.confidence.shape[1]
    DraftOutcomes(max_draft_tokens).observe(Calibration.identity(max_draft_tokens), [paired])
