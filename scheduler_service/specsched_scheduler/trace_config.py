"""Where traces go: apart, so that reading options imports neither planner nor pyarrow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["TraceConfig"]


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Where traces go and how large they may become.

    max_bytes: of all files of the folder; the oldest are removed. max_file_bytes: after which the
    next file is begun. max_file_age_s: of its first step, after which a file is ended, so that it
    can be read while the scheduler runs.
    """

    directory: Path
    max_bytes: int = 1 << 30
    max_file_bytes: int = 64 << 20
    max_file_age_s: float = 10.0
