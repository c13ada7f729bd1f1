"""The temperature that sampling goes by, whatever code runs it."""

from __future__ import annotations

from typing import Final

__all__ = ["SMALLEST_TEMPERATURE"]

SMALLEST_TEMPERATURE: Final = 1e-30
"""A lower one above 0 counts as this: the likeliest token has all the mass as well, and logits
divided by it stay finite, so that 0 times it is still 0."""
