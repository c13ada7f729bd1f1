"""What the thread that watches schedulers does at each turn, whatever part of it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from specsched_protocol.recurring_failure import RecurringFailure

__all__ = ["Duty", "Watch"]


class Duty:
    """Done once in every `interval_s`, at the first turn after that."""

    def __init__(self, action: Callable[[], object], interval_s: float) -> None:
        self._action = action
        self._interval_s = interval_s
        self._due_s = float("-inf")

    def do_if_due(self, now_s: float) -> None:
        """Raises what the action raises, which is then due after another interval."""
        if now_s >= self._due_s:
            self._due_s = now_s + self._interval_s
            self._action()


class Watch:
    """Looks at the schedulers at each turn, and does other duties beside it. One thread.

    A fault that nobody foresaw is told of, and ends no more than what it happened in. look: to be
    done at each turn. give_up: done at each turn that comes when `look` has failed for
    `patience_s` without a break: who is attached then is watched by nobody.
    """

    def __init__(
        self,
        look: Callable[[], object],
        duties: Sequence[Duty],
        *,
        patience_s: float,
        give_up: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._duties = tuple(duties)
        self._patience_s = patience_s
        self._give_up = give_up
        self._clock = clock
        self._blind_since_s: float | None = None
        self._fault = RecurringFailure("watching schedulers failed")

    @property
    def num_faults(self) -> int:
        """Of all turns; any thread."""
        return self._fault.num_failures

    def turn(self) -> None:
        """Raises nothing."""
        now_s = self._clock()
        if self._do(self._look):
            self._blind_since_s = None
        elif self._blind_since_s is None:
            self._blind_since_s = now_s
        if self._blind_since_s is not None and now_s - self._blind_since_s >= self._patience_s:
            self._do(self._give_up)
        for duty in self._duties:
            self._do(partial(duty.do_if_due, now_s))

    def _do(self, action: Callable[[], object]) -> bool:
        """Whether it could be done."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - there is no other thread that would watch
            self._fault.tell(error)
            return False
        return True
