"""Errors of the tokenizer package."""

from __future__ import annotations


class TokenizerError(ValueError):
    """A tokenizer or chat template that cannot be used; names its source and what is accepted."""
