"""Asking an executor to follow this scheduler's decisions, or not to."""

from __future__ import annotations

import asyncio
import itertools

import structlog
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.versions import common_features

from .outbox import Outbox

__all__ = ["LaneControl"]

_log = structlog.get_logger(__name__)


class LaneControl:
    """The part of an attachment that is about who is followed. Lives on the server's event loop.

    status: what the executor told last, None before. features: those that both ends use.
    """

    def __init__(self, hello: pb.Hello, outbox: Outbox) -> None:
        self.features = common_features(hello.features)
        self.status: pb.LaneStatus | None = None
        self._hello = hello
        self._outbox = outbox
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[pb.LaneReply]] = {}

    async def wish(
        self, wish: pb.LaneWish.ValueType, timeout_s: float, *, stays: bool
    ) -> pb.LaneChange:
        """Ask, and wait for the answer; one that does not come is an answer, too.

        stays: this scheduler goes on, whatever is followed then.
        """
        return pb.LaneChange(
            boot_id=self._hello.boot_id,
            executor_name=self._hello.executor_name,
            reply=await self._ask(wish, timeout_s, stays=stays),
        )

    def on_status(self, status: pb.LaneStatus) -> None:
        """The executor tells whether this scheduler is followed; that it was given up is logged."""
        before = self.status.given_up_for if self.status else ""
        self.status = status
        if status.given_up_for and status.given_up_for != before:
            _log.warning(
                "given up",
                executor=self._hello.executor_name,
                reason=status.given_up_for,
                active=status.active_scheduler,
            )

    def on_reply(self, reply: pb.LaneReply) -> None:
        """The executor answered."""
        waiting = self._waiting.get(reply.request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def close(self, reason: str) -> None:
        """The stream is at its end: nobody will answer any more."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(pb.LaneReply(reason=reason))

    async def _ask(
        self, wish: pb.LaneWish.ValueType, timeout_s: float, *, stays: bool
    ) -> pb.LaneReply:
        if pb.FEATURE_LANE_CONTROL not in self.features:
            return pb.LaneReply(reason="the executor does not have the feature LANE_CONTROL")
        request = pb.LaneRequest(
            request_id=next(self._ids), wish=wish, epoch=self._hello.epoch, stays=stays
        )
        answer: asyncio.Future[pb.LaneReply] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = answer
        self._outbox.put(pb.AttachResponse(lane_request=request))
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            return pb.LaneReply(reason=f"the executor did not answer within {timeout_s:g} s")
        finally:
            del self._waiting[request.request_id]
