"""Promoting a scheduler from the page: the same call as `specsched promote`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
import structlog
from specsched_protocol.run_dir import RunDir, RunDirError
from specsched_protocol.unreachable import status_reason
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.v1.scheduler_pb2_grpc import SchedulerServiceStub

__all__ = ["PromotionError", "Promotions"]

_log = structlog.get_logger(__name__)

_TIMEOUT_S = 15.0


class PromotionError(Exception):
    """Nobody was asked; the message says why."""


class Promotions:
    """Asks schedulers of one run directory, this one among them. Lives on an event loop.

    known: names of the schedulers that an attached executor tells of.
    """

    def __init__(self, run_dir: RunDir, known: Callable[[], set[str]]) -> None:
        self._run_dir = run_dir
        self._known = known

    def promotable(self) -> set[str]:
        """Names that `promote` takes now."""
        here = {path.stem for path in self._run_dir.scheduler_sockets()}
        return here & self._known()

    async def promote(self, name: str) -> list[dict[str, Any]]:
        """Have executors follow `name`; what became of it at each. Raises PromotionError."""
        if name not in self.promotable():
            raise PromotionError(
                f"{name!r} is no scheduler of this run directory with an executor that this one"
                f" has; accepted: {', '.join(sorted(self.promotable())) or 'none'}"
            )
        try:
            target = f"unix:{self._run_dir.scheduler_socket(name)}"
            async with grpc.aio.insecure_channel(target) as channel:
                answer = await SchedulerServiceStub(channel).Promote(
                    pb.PromoteRequest(), timeout=_TIMEOUT_S
                )
        except RunDirError as error:
            raise PromotionError(str(error)) from None
        except grpc.aio.AioRpcError as error:
            reason = status_reason(error.code(), error.details())
            raise PromotionError(f"{name}: {reason}") from None
        _log.info("promoted on the page", scheduler=name, executors=len(answer.executors))
        return list(map(_told, _sorted(answer.executors)))


def _sorted(changes: Sequence[pb.LaneChange]) -> list[pb.LaneChange]:
    return sorted(changes, key=lambda each: each.executor_name)


def _told(change: pb.LaneChange) -> dict[str, Any]:
    reply = change.reply
    return {
        "executor": change.executor_name,
        "done": reply.done,
        "reason": reply.reason,
        "active_scheduler": reply.active_scheduler,
        "step_id": reply.step_id,
    }
