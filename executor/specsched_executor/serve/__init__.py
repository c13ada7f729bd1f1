"""The executor process: puts the parts together, serves, ends in good order."""

from __future__ import annotations

from .process import serve

__all__ = ["serve"]
