"""What a session has to send: control messages in order, and the newest steps of its lane."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Iterator

from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_executor.transport.inline import InlineLane

__all__ = ["Outbox"]

_REPORT_INTERVAL_MS = 100
"""Steps ring when they are published, not when they are reported: the last report waits so long."""
_MAX_QUEUED = 64


class Outbox:
    """Any thread may `put`, `put_latest`, `follow`, `close`, never blocking; one has `messages`.

    A stream takes its messages one by one as it can send them. Steps are looked up only then, and
    of news only the latest of a kind is kept, so a stream that takes nothing does not let them pile
    up.
    """

    def __init__(self) -> None:
        self._queue: deque[pb.AttachRequest] = deque()
        self._latest: dict[str, pb.AttachRequest] = {}
        self._lock = threading.Lock()
        self._wake = OwnedDescriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._lane: InlineLane | None = None
        self._is_closed = False

    def put(self, message: pb.AttachRequest) -> None:
        """Send `message` after those put before."""
        with self._lock:
            if len(self._queue) >= _MAX_QUEUED:
                self._is_closed = True  # a peer that asks and does not listen
            else:
                self._queue.append(message)
        self._ring()

    def put_latest(self, message: pb.AttachRequest) -> None:
        """Send `message` in place of one of its kind that was not sent yet."""
        kind = message.WhichOneof("message")
        with self._lock:
            self._latest[str(kind)] = message
        self._ring()

    def follow(self, lane: InlineLane) -> None:
        """Send the steps of `lane` too, from now on."""
        self._lane = lane
        self._ring()

    def close(self) -> None:
        """End `messages` once what was put before is sent."""
        self._is_closed = True
        self._ring()

    def messages(self) -> Iterator[pb.AttachRequest]:
        """Waits for the next message until closed."""
        while True:
            is_closed = self._is_closed  # before the queue: what was put before it is still sent
            message = self._next()
            if message is not None:
                yield message
                continue
            if is_closed:
                return
            steps = self._lane.take() if self._lane is not None else None
            if steps is not None:
                yield pb.AttachRequest(steps=steps)
            else:
                self._wait()

    def _next(self) -> pb.AttachRequest | None:
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            if self._latest:
                return self._latest.pop(next(iter(self._latest)))
        return None

    def _ring(self) -> None:
        os.eventfd_write(self._wake.fileno(), 1)

    def _wait(self) -> None:
        """Sleep until something was put or published; look before and after, so none is missed."""
        lane = self._lane
        descriptors = [self._wake.fileno()] + ([] if lane is None else [lane.fileno()])
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(None if lane is None else _REPORT_INTERVAL_MS):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(descriptor)
