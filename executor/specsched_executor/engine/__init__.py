"""The engine: continuous batching over a target, with drafts verified as a scheduler plans."""

from __future__ import annotations

from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.counters import EngineStats, StepOutcomes
from specsched_executor.engine.engine import Engine
from specsched_executor.engine.fallback import FallbackKind, FallbackPolicy
from specsched_executor.engine.stopping import Detokenizer

__all__ = [
    "Detokenizer",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "FallbackKind",
    "FallbackPolicy",
    "StepOutcomes",
]
