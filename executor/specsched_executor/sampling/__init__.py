"""Sampling and lossless verification, batched over ragged requests."""

from __future__ import annotations

from specsched_executor.sampling.distribution import draw, target_distribution
from specsched_executor.sampling.logit_rules import (
    LogitRules,
    alters_logits,
    has_logit_rules,
    has_penalties,
    suppress_early_stops,
)
from specsched_executor.sampling.logprobs import RowLogprobs, token_logprobs
from specsched_executor.sampling.params import (
    MAX_BIASED_TOKENS,
    MAX_STOP_TOKEN_IDS,
    SamplingTensors,
    validate_sampling,
)
from specsched_executor.sampling.uniforms import (
    SEED_BITS,
    Purpose,
    derived_seed,
    keyed_uniforms,
)
from specsched_executor.sampling.verification import (
    Verification,
    VerificationInputs,
    verify_drafts,
)

__all__ = [
    "MAX_BIASED_TOKENS",
    "MAX_STOP_TOKEN_IDS",
    "SEED_BITS",
    "LogitRules",
    "Purpose",
    "RowLogprobs",
    "SamplingTensors",
    "Verification",
    "VerificationInputs",
    "alters_logits",
    "derived_seed",
    "draw",
    "has_logit_rules",
    "has_penalties",
    "keyed_uniforms",
    "suppress_early_stops",
    "target_distribution",
    "token_logprobs",
    "validate_sampling",
    "verify_drafts",
]
