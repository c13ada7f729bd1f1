"""What the drafter's confidences are worth, for ranking drafts as the scheduler that is followed.

    calibrated = sigmoid(logit(confidence) / temperature + intercept)

by draft position, apart for greedy and sampled requests. A budget counts on calibrated survivals;
were they ranked raw, drafts would get it that it was not meant for. Each position is changed by
itself, so that a later token still cannot lift an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from specsched_kernels.reference.calibration import calibrated
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_executor.evaluation.calibration_file import CalibrationFile

__all__ = ["LEARNED_FILE", "ConfidenceCalibration", "read_checkpoint_calibration"]

LEARNED_FILE = "learned.json"
"""Beside a checkpoint: what `specsched calibrate --out` made of the drafter's recorded drafts."""

_MIN_TEMPERATURE, _MAX_TEMPERATURE, _MAX_INTERCEPT = 0.25, 4.0, 3.0


@dataclass(frozen=True, slots=True, eq=False)
class ConfidenceCalibration:
    """temperature, intercept: float32 [2, k], of greedy (0) and of sampled (1) requests."""

    temperature: torch.Tensor
    intercept: torch.Tensor

    @classmethod
    def from_message(
        cls, message: pb.Calibration, max_draft_tokens: int
    ) -> ConfidenceCalibration | None:
        """None where nothing is to be changed. Raises ValueError naming the field that is wrong."""
        temperature, intercept = [], []
        for name, part in (("greedy", message.greedy), ("sampled", message.sampled)):
            is_told = bool(part.temperature or part.intercept)
            if is_told:
                _check(name, part, max_draft_tokens)
            temperature.append(list(part.temperature) if is_told else [1.0] * max_draft_tokens)
            intercept.append(list(part.intercept) if is_told else [0.0] * max_draft_tokens)
        is_identity = {*chain(*temperature)} <= {1.0} and {*chain(*intercept)} <= {0.0}
        return None if is_identity else cls(torch.tensor(temperature), torch.tensor(intercept))

    def apply(self, confidence: torch.Tensor, is_greedy: torch.Tensor) -> torch.Tensor:
        """Calibrated confidences, float32 [R, k]; what is no probability stays as it is.

        confidence: float32 [R, k]. is_greedy: bool [R].
        """
        of_class = (~is_greedy).long()
        return calibrated(confidence, self.temperature[of_class], self.intercept[of_class])


def read_checkpoint_calibration(checkpoint: Path, max_draft_tokens: int) -> pb.Calibration:
    """What lies beside a checkpoint, empty where nothing does; positions beyond it stay as they
    are.

    Raises ValueError naming the file for one that is no calibration.
    """
    path = checkpoint / LEARNED_FILE
    if not path.exists():
        return pb.Calibration()
    learned = CalibrationFile.read(path)
    num_left = max(0, max_draft_tokens - learned.temperature.shape[1])
    parts = [
        pb.ClassCalibration(
            temperature=[*learned.temperature[row, :max_draft_tokens].tolist(), *[1.0] * num_left],
            intercept=[*learned.intercept[row, :max_draft_tokens].tolist(), *[0.0] * num_left],
        )
        for row in range(2)
    ]
    message = pb.Calibration(greedy=parts[0], sampled=parts[1])
    try:
        ConfidenceCalibration.from_message(message, max_draft_tokens)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return message


def _check(name: str, part: pb.ClassCalibration, max_draft_tokens: int) -> None:
    bounds = {
        "temperature": (_MIN_TEMPERATURE, _MAX_TEMPERATURE),
        "intercept": (-_MAX_INTERCEPT, _MAX_INTERCEPT),
    }
    for field, (low, high) in bounds.items():
        values = list(getattr(part, field))
        if len(values) != max_draft_tokens:
            raise ValueError(
                f"calibration.{name}.{field} has {len(values)} values, accepted: {max_draft_tokens}"
            )
        for value in values:
            if not low <= value <= high:
                raise ValueError(
                    f"calibration.{name}.{field} is {value}, accepted are {low:g} to {high:g}"
                )
