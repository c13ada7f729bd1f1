"""Errors of learning.

LearningError (ValueError)
├── TraceError        a trace file that cannot be used; names the array
└── StateError        a document of learned state that cannot be used; names the field
"""

from __future__ import annotations

__all__ = ["LearningError", "StateError", "TraceError"]


class LearningError(ValueError):
    """Base of the errors below."""


class TraceError(LearningError):
    """A recorded trace that is malformed; the message names the array and what is accepted."""


class StateError(LearningError):
    """A document of learned state that is malformed; the message names the field."""
