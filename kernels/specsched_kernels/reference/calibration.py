"""What a drafter's confidences are worth, in plain torch."""

from __future__ import annotations

import torch

__all__ = ["LOGIT_EPSILON", "calibrated"]

LOGIT_EPSILON = 1e-6
"""Confidences count as at least this far from 0 and 1."""


def calibrated(
    confidence: torch.Tensor, temperature: torch.Tensor, intercept: torch.Tensor
) -> torch.Tensor:
    """sigmoid(logit(confidence) / temperature + intercept), element by element, float32.

    What is not within (0, 1) stays as it is, and so does all where the temperature is 0.
    """
    logit = torch.logit(confidence, eps=LOGIT_EPSILON)
    changes = (confidence > 0.0) & (confidence < 1.0) & (temperature > 0.0)
    return torch.where(changes, torch.sigmoid(logit / temperature + intercept), confidence)
