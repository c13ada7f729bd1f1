"""Sampling and lossless verification, batched over ragged requests."""

from __future__ import annotations

from specsched_executor.sampling.distribution import draw, target_distribution
from specsched_executor.sampling.logit_rules import suppress_early_stops
from specsched_executor.sampling.params import SamplingTensors, validate_sampling
from specsched_executor.sampling.uniforms import Purpose, keyed_uniforms
from specsched_executor.sampling.verification import (
    Verification,
    VerificationInputs,
    verify_drafts,
)

__all__ = [
    "Purpose",
    "SamplingTensors",
    "Verification",
    "VerificationInputs",
    "draw",
    "keyed_uniforms",
    "suppress_early_stops",
    "target_distribution",
    "validate_sampling",
    "verify_drafts",
]
