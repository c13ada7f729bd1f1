"""A sampled stream of decisions, read from the planners without disturbing them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

from specsched_protocol.v1 import scheduler_pb2 as pb

from .attachment import Attachment
from .attachments import Attachments
from .errors import InvalidMessageError

__all__ = ["DEFAULT_PER_SECOND", "MAX_PER_SECOND", "DecisionWatch"]

DEFAULT_PER_SECOND = 20
MAX_PER_SECOND = 1000


class DecisionWatch:
    """Tells the newest decision of each attachment in turn, `max_per_second` in all.

    0 stands for the default rate. Decisions made before the watch began are not told; `num_missed`
    counts those between the one told now and the one told before. Raises InvalidMessageError for a
    rate that is not accepted.
    """

    def __init__(self, attachments: Attachments, max_per_second: int) -> None:
        if max_per_second > MAX_PER_SECOND:
            raise InvalidMessageError(
                f"max_per_second = {max_per_second}, accepted: 1 to {MAX_PER_SECOND}, "
                f"or 0 for {DEFAULT_PER_SECOND}"
            )
        self._attachments = attachments
        self._interval_s = 1.0 / (max_per_second or DEFAULT_PER_SECOND)
        self._told = WeakKeyDictionary({a: _newest_index(a) for a in attachments})

    async def responses(self) -> AsyncIterator[pb.WatchDecisionsResponse]:
        """Goes on until the scheduler ends."""
        while not self._attachments.closed:
            for attachment in self._attachments:
                response = self._next(attachment)
                if response is not None:
                    yield response
                    await asyncio.sleep(self._interval_s)
            await asyncio.sleep(self._interval_s)

    def _next(self, attachment: Attachment) -> pb.WatchDecisionsResponse | None:
        newest = attachment.planning.newest()
        told = self._told.get(attachment, 0)
        if newest is None or newest.index == told:
            return None
        self._told[attachment] = newest.index
        return pb.WatchDecisionsResponse(
            boot_id=attachment.hello.boot_id,
            decision=attachment.planning.message(newest),
            num_requests=newest.num_requests,
            num_draft_tokens=newest.num_draft_tokens,
            num_missed=newest.index - told - 1,
        )


def _newest_index(attachment: Attachment) -> int:
    newest = attachment.planning.newest()
    return newest.index if newest else 0
