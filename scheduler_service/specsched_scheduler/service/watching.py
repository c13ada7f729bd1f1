"""A sampled stream of decisions, read from the planners without disturbing them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from specsched_protocol.v1 import scheduler_pb2 as pb

from .attachment import Attachment
from .attachments import Attachments
from .errors import InvalidMessageError

__all__ = ["DEFAULT_PER_SECOND", "MAX_PER_SECOND", "watch_decisions"]

DEFAULT_PER_SECOND = 20
MAX_PER_SECOND = 1000


async def watch_decisions(
    attachments: Attachments, max_per_second: int
) -> AsyncIterator[pb.WatchDecisionsResponse]:
    """Newest decision of each attachment in turn, `max_per_second` in all (0: the default).

    `num_missed` counts the decisions since the one told before. Decisions made before the call
    are not told. Raises InvalidMessageError for a rate that is not accepted.
    """
    if max_per_second > MAX_PER_SECOND:
        raise InvalidMessageError(
            f"max_per_second = {max_per_second}, accepted: 1 to {MAX_PER_SECOND}, "
            f"or 0 for {DEFAULT_PER_SECOND}"
        )
    interval_s = 1.0 / (max_per_second or DEFAULT_PER_SECOND)
    seen = {attachment: _num_decisions(attachment) for attachment in attachments}
    while not attachments.closed:
        for attachment in attachments:
            response = _next(attachment, seen)
            if response is not None:
                yield response
                await asyncio.sleep(interval_s)
        await asyncio.sleep(interval_s)


def _num_decisions(attachment: Attachment) -> int:
    newest = attachment.planning.newest()
    return newest.index if newest else 0


def _next(attachment: Attachment, seen: dict[Attachment, int]) -> pb.WatchDecisionsResponse | None:
    newest = attachment.planning.newest()
    before = seen.get(attachment, 0)
    if newest is None or newest.index == before:
        return None
    seen[attachment] = newest.index
    return pb.WatchDecisionsResponse(
        boot_id=attachment.hello.boot_id,
        decision=attachment.planning.message(newest),
        num_requests=newest.num_requests,
        num_draft_tokens=newest.num_draft_tokens,
        num_missed=newest.index - before - 1,
    )
