"""Calibrations as messages, and back."""

from __future__ import annotations

import numpy as np
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.errors import StateError

__all__ = ["calibration_from_message", "calibration_to_message"]

_NAMES = {GREEDY: "greedy", SAMPLED: "sampled"}


def calibration_from_message(message: pb.Calibration, max_draft_tokens: int) -> Calibration:
    """Raises StateError naming the field that is wrong."""
    calibration = Calibration.identity(max_draft_tokens)
    for of_class, name in _NAMES.items():
        part: pb.ClassCalibration = getattr(message, name)
        if not part.temperature and not part.intercept:
            continue
        for field in ("temperature", "intercept"):
            length = len(getattr(part, field))
            if length != max_draft_tokens:
                raise StateError(
                    f"calibration.{name}.{field} has {length} values, accepted: max_draft_tokens ="
                    f" {max_draft_tokens}"
                )
        calibration = calibration.with_class(
            of_class, np.array(part.temperature), np.array(part.intercept)
        )
    return calibration


def calibration_to_message(calibration: Calibration) -> pb.Calibration:
    """Both classes in full."""
    return pb.Calibration(
        **{
            name: pb.ClassCalibration(
                temperature=calibration.temperature[of_class].tolist(),
                intercept=calibration.intercept[of_class].tolist(),
            )
            for of_class, name in _NAMES.items()
        }
    )
