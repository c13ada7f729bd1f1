"""All attached executors and the one policy they are planned by."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.learning.document import LearnedState
from specsched_scheduler.policies import BuiltPolicy, PolicyError, check_effect
from specsched_scheduler.telemetry import Slots

from .attachment import Attachment
from .errors import InvalidMessageError, NotReadyError, TooManyAttachmentsError
from .learned import LearnedStates
from .learning_messages import executor_kind

__all__ = ["Attachments"]

_log = structlog.get_logger(__name__)

_LANE_TIMEOUT_S = 10.0
"""An executor decides within two seconds whether it can follow; several may be asked in turn."""


class Attachments:
    """Registry of attachments. Lives on the server's event loop, so it needs no lock."""

    def __init__(self, policy: BuiltPolicy, max_attachments: int, learned: LearnedStates) -> None:
        self.policy = policy
        self.learned = learned
        self.slots = Slots()
        self._max_attachments = max_attachments
        self._members: list[Attachment] = []
        self._num_admitted = 0
        self.closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    def __iter__(self) -> Iterator[Attachment]:
        return iter(tuple(self._members))

    def check_open(self) -> None:
        """Raise NotReadyError once `close` was called."""
        if self.closed:
            raise NotReadyError("this scheduler is shutting down")

    @contextmanager
    def admission(self) -> Iterator[None]:
        """A place for one executor; raises TooManyAttachmentsError or NotReadyError."""
        self.check_open()
        if self._num_admitted >= self._max_attachments:
            raise TooManyAttachmentsError(
                f"{self._num_admitted} executors are attached, accepted: {self._max_attachments}"
                " (--max-attachments)"
            )
        self._num_admitted += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._num_admitted -= 1
            if self._num_admitted == 0:
                self._empty.set()

    @contextmanager
    def member(self, attachment: Attachment) -> Iterator[None]:
        """Have `attachment` follow policy changes and show in the status while it lasts.

        Raises NotReadyError once `close` was called: nobody would end its stream.
        """
        self.check_open()
        self._warn_of_no_effect(attachment)
        if attachment.planning.policy != self.policy:  # it changed while this one was opened
            attachment.follow(self.policy)
        with self.slots.taken() as attachment.slot:
            self._members.append(attachment)
            try:
                yield
            finally:
                self._members.remove(attachment)
                self.learned.keep(attachment.planning.learning.entry())

    def set_policy(self, policy: BuiltPolicy) -> BuiltPolicy:
        """Plan every attachment by `policy` from its next decision on; return the previous one.

        Raises PolicyError for one that cannot take effect in any attached executor.
        """
        self._check_effect(policy)
        previous, self.policy = self.policy, policy
        for attachment in self._members:
            attachment.follow(policy)
        return previous

    def set_frozen(self, *, is_frozen: bool) -> bool:
        """Have all that is learned stay as it is, or not; returns whether it did before."""
        previous, self.learned.is_frozen = self.learned.is_frozen, is_frozen
        for attachment in self._members:
            attachment.planning.learning.set_frozen(is_frozen=is_frozen)
        return previous

    def adopt(self, state: LearnedState) -> int:
        """Go on from `state`, here and in attachments to come; how many here know their kind."""
        self.learned.adopt(state)
        num_applied = 0
        for attachment in self._members:
            entry = LearnedStates(state, is_frozen=True).of(executor_kind(attachment.hello))
            if entry is not None:
                attachment.planning.learning.restore(entry)
                num_applied += 1
        return num_applied

    def document(self) -> LearnedState:
        """Everything learned, now."""
        return self.learned.document([a.planning.learning.entry() for a in self._members])

    def _check_effect(self, policy: BuiltPolicy) -> None:
        # With nobody attached there is nothing to compare with: an executor may come with more.
        longest = max((each.hello.model.max_draft_tokens for each in self._members), default=None)
        if longest is not None:
            check_effect(policy, longest, "any attached executor")

    def _warn_of_no_effect(self, attachment: Attachment) -> None:
        # An executor is no worse for a cap that never binds, so it is not turned away for it.
        hello = attachment.hello
        try:
            check_effect(self.policy, hello.model.max_draft_tokens, hello.executor_name)
        except PolicyError as error:
            _log.warning("policy without effect", executor=hello.executor_name, reason=str(error))

    async def wish(
        self, wish: pb.LaneWish.ValueType, boot_id: bytes = b"", *, stays: bool = True
    ) -> list[pb.LaneChange]:
        """Ask executors, all or that one, to follow or not; what became of it at each.

        stays: whether this scheduler goes on, and may be followed later.
        Raises InvalidMessageError where none of them is attached.
        """
        asked = [each for each in self._members if boot_id in {b"", each.hello.boot_id}]
        if not asked:
            which = f"boot_id = {boot_id.hex()}: no such executor" if boot_id else "no executor"
            raise InvalidMessageError(f"{which} is attached; attached are {len(self._members)}")
        changes = (each.lane_control.wish(wish, _LANE_TIMEOUT_S, stays=stays) for each in asked)
        return list(await asyncio.gather(*changes))

    def close(self) -> None:
        """Admit nobody any more and end every stream."""
        self.closed = True
        for attachment in self:
            attachment.end("this scheduler is shutting down")

    async def wait_until_empty(self) -> None:
        """Wait until all are gone that were admitted."""
        await self._empty.wait()
