"""Structured logs on stderr: for a person on a terminal, JSON lines otherwise.

Lines of libraries that log by the standard library (gRPC, asyncio, OpenTelemetry) and warnings come
out in the same form, from level `warning` up. Nothing logs a line per step at `info`: what may
happen in any step is told through a `LogSampler`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import structlog

__all__ = ["LogFormat", "LogLevel", "LogSampler", "configure_logging", "logs_on_stderr"]

LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def configure_logging(level: LogLevel, log_format: LogFormat) -> None:
    """Set up the logs of this process; `auto` is `console` where stderr is a terminal."""
    number = logging.getLevelNamesMapping()[level.upper()]
    described: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered = _renderers(log_format)
    structlog.configure(
        processors=[*described, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    _adopt_libraries(max(number, logging.WARNING), described, rendered)


@contextmanager
def logs_on_stderr() -> Iterator[None]:
    """Warnings and worse on stderr, and nothing else, while a command works whose result is its
    standard output."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def _renderers(log_format: LogFormat) -> list[structlog.types.Processor]:
    if log_format == "console" or (log_format == "auto" and sys.stderr.isatty()):
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _adopt_libraries(
    level: int,
    described: list[structlog.types.Processor],
    rendered: list[structlog.types.Processor],
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *described],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.captureWarnings(capture=True)


@dataclass(slots=True)
class _Told:
    """When a kind of event was last told and is next; how many were not since."""

    next_s: float
    interval_s: float
    num_untold: int = 0


class LogSampler:
    """Decides which of many events of one kind become a line. One thread.

    The first is told at once. While they go on, the time between two lines doubles, from
    min_interval_s up to max_interval_s; after max_interval_s without any it begins anew. Kinds are
    few: they are never forgotten.
    """

    def __init__(
        self,
        min_interval_s: float = 1.0,
        max_interval_s: float = 60.0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._min_interval_s = min_interval_s
        self._max_interval_s = max_interval_s
        self._clock = clock
        self._told: dict[Hashable, _Told] = {}

    def admit(self, kind: Hashable) -> int | None:
        """How many of this kind came since the last line, this one included; None: no line."""
        now = self._clock()
        told = self._told.get(kind)
        if told is None or now >= told.next_s + self._max_interval_s:
            untold = told.num_untold if told else 0
            self._told[kind] = _Told(now + self._min_interval_s, self._min_interval_s)
            return untold + 1
        told.num_untold += 1
        if now < told.next_s:
            return None
        told.interval_s = min(2 * told.interval_s, self._max_interval_s)
        told.next_s = now + told.interval_s
        count, told.num_untold = told.num_untold, 0
        return count
