"""Read results of earlier measurements, take ratios between them, draw them."""

from __future__ import annotations
