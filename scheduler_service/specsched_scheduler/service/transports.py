"""How the steps of an executor reach its planner: the best way that both ends can do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from specsched_protocol.handoff import HandoffError
from specsched_protocol.inline import inline_message_bytes
from specsched_protocol.shm import LayoutError, RegionError
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.planner import InlineFeed, SchedulerRegions, attach_regions

from .errors import PeerRefusedError

__all__ = ["StepTransport", "choose_transport"]


@dataclass(frozen=True, slots=True)
class StepTransport:
    """What was chosen. reason: why it is not shared memory. feed: for steps on the stream."""

    kind: pb.Transport.ValueType
    reason: str
    regions: SchedulerRegions
    feed: InlineFeed | None = None


async def choose_transport(
    hello: pb.Hello, *, peer_is_local: bool, max_message_bytes: int
) -> StepTransport:
    """Shared memory if it is offered and can be had, else the stream if the executor accepts it.

    The offer of a peer on another machine is left alone: the path in it is one of that machine.
    Raises PeerRefusedError telling why neither is possible.
    """
    if not hello.HasField("shared_memory"):
        reason = "the executor offers none (hello.shared_memory is absent)"
    elif not peer_is_local:
        reason = "the executor is on another machine"
    else:
        try:
            regions = await asyncio.to_thread(attach_regions, hello)
        except (HandoffError, LayoutError, RegionError) as error:
            reason = str(error)
        else:
            return StepTransport(pb.TRANSPORT_SHARED_MEMORY, "", regions)
    return _inline(hello, f"no shared memory: {reason}", max_message_bytes)


def _inline(hello: pb.Hello, reason: str, max_message_bytes: int) -> StepTransport:
    if not hello.accepts_inline:
        raise PeerRefusedError(f"{reason}; and hello.accepts_inline is false")
    needed = inline_message_bytes(hello.model.max_requests, hello.model.max_draft_tokens)
    if needed > max_message_bytes:
        raise PeerRefusedError(
            f"{reason}; and a step of max_requests = {hello.model.max_requests}, max_draft_tokens ="
            f" {hello.model.max_draft_tokens} takes up to {needed} bytes on the stream, accepted:"
            f" {max_message_bytes} (--max-message-bytes)"
        )
    try:
        feed = InlineFeed(hello)
    except (LayoutError, OSError) as error:
        raise PeerRefusedError(f"{reason}; and no memory for steps: {error}") from error
    return StepTransport(pb.TRANSPORT_INLINE, reason, feed.regions, feed)
