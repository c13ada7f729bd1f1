"""What the tests of attaching share."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable

from specsched_executor.attach import AttachConfig, ExecutorFacts
from specsched_executor.transport.inline import InlineLane
from specsched_executor.transport.lanes import Lane, LaneError, LaneOffer, LaneSwitch
from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.shm import create_lane_region
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

TIMEOUT_S = 60.0

FAST = AttachConfig(
    poll_ms=10,
    heartbeat_ms=20,
    min_backoff_ms=20,
    max_backoff_ms=100,
    handshake_timeout_ms=500,
)


class RecordingLanes:
    """Lanes that no engine reads: what was asked of them, in order."""

    def __init__(self, num_lanes: int = 4) -> None:
        self.calls: list[tuple[str, int | None]] = []
        self.changed = threading.Condition()
        self._free = set(range(num_lanes))
        self._epochs = itertools.count(1)
        self.opened: dict[int, Lane] = {}
        self.begun: LaneSwitch | None = None

    def open_lane(self, *, share_memory: bool = True) -> LaneOffer:
        with self.changed:
            if not self._free:
                raise LaneError("all lanes are taken")
            lane = min(self._free)
            self._free.remove(lane)
            epoch = next(self._epochs)
            region = create_lane_region(FACTS.boot_id, lane, epoch)
            doorbell = OwnedDescriptor(os.eventfd(0, os.EFD_CLOEXEC))
            self.opened[lane] = Lane(region, doorbell, None)
        offer = pb.SharedMemoryOffer(handoff_socket_path="/x", nonce=bytes(32), abi_version=1)
        return LaneOffer(lane, epoch, offer if share_memory else None)

    def run_inline(self, lane: int) -> InlineLane:
        raise LaneError("these lanes have no memory")

    def lane_ready(self, lane: int) -> None:
        self._record("ready", lane)

    def close_lane(self, lane: int) -> None:
        with self.changed:
            self._free.add(lane)
        self._record("close", lane)

    def activate(self, lane: int | None) -> None:
        self._record("activate", lane)

    def begin_switch(self, lane: int, *, yields: bool = False) -> LaneSwitch:
        self._record("switch", lane)
        self.begun = LaneSwitch(self.opened[lane], yields)
        return self.begun

    def lane(self, lane: int) -> Lane:
        return self.opened[lane]

    def has_plan(self, lane: int) -> bool:
        return True

    def last_read_step_id(self) -> int:
        return 41

    def set_cost(self, cost: plan_pb2.CostModel) -> None:
        pass

    def compare_shadows(self) -> int:
        return 0

    def _record(self, name: str, lane: int | None) -> None:
        with self.changed:
            self.calls.append((name, lane))
            self.changed.notify_all()

    def wait_for(self, *calls: tuple[str, int | None]) -> None:
        """Wait until exactly `calls` were made so far."""
        with self.changed:
            made = self.changed.wait_for(lambda: len(self.calls) >= len(calls), TIMEOUT_S)
            assert made, self.calls
            assert self.calls[: len(calls)] == list(calls)


def eventually(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not true in time"
        time.sleep(0.005)


FACTS = ExecutorFacts(
    boot_id=bytes(range(16)),
    name="tiny",
    version="1",
    model=pb.ModelFacts(name="tiny", max_requests=4, max_draft_tokens=7),
    capture_sizes=(1, 2, 4),
    cost=plan_pb2.CostModel(fingerprint="first"),
    current_step_id=lambda: 42,
)
