"""A failure that a loop goes on after: counted in full, logged now and then."""

from __future__ import annotations

import structlog

from .logs import LogSampler

__all__ = ["RecurringFailure"]

_log = structlog.get_logger(__name__)

_MAX_INTERVAL_S = 3600.0


class RecurringFailure:
    """Told of what nobody foresaw, which may come back at every turn of the loop. One thread tells.

    The first failure at a place in the code is logged with its traceback; those after it in a line,
    with how many came since the last one, ever more seldom. num_failures: all of them; any thread
    may read it.
    """

    def __init__(self, event: str, sampler: LogSampler | None = None) -> None:
        self.num_failures = 0
        self._event = event
        self._sampler = sampler or LogSampler(max_interval_s=_MAX_INTERVAL_S)
        self._known: set[tuple[type[BaseException], str, int]] = set()

    def tell(self, error: BaseException, **fields: object) -> None:
        """Count a failure, and log it if that is due. fields: of the line."""
        self.num_failures += 1
        place = _place(error)
        count = self._sampler.admit(place)
        if count is None:
            return
        traceback = {} if place in self._known else {"exc_info": error}
        self._known.add(place)
        reason = f"{type(error).__name__}: {error}"
        _log.error(self._event, reason=reason, count=count, **fields, **traceback)


def _place(error: BaseException) -> tuple[type[BaseException], str, int]:
    """Its type and the line that raised it."""
    line = error.__traceback__
    while line is not None and line.tb_next is not None:
        line = line.tb_next
    if line is None:
        return type(error), "", 0
    return type(error), line.tb_frame.f_code.co_filename, line.tb_lineno
