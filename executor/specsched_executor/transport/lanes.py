"""The lanes of the schedulers attached to this executor: opening, activating, closing.

A lane is opened with fresh memory, a fresh doorbell and a higher epoch each time. A scheduler that
was given up and comes back to life therefore writes where nobody looks any more.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.handoff import HandoffServer, SharedDescriptors
from specsched_protocol.shm import ABI_VERSION, ExecutorRegion, LaneRegion, create_lane_region
from specsched_protocol.shm.lane import heartbeat_ns
from specsched_protocol.shm.layout import WORD_BYTES
from specsched_protocol.v1 import scheduler_pb2

from specsched_executor.calibration import ConfidenceCalibration
from specsched_executor.transport.comparison import LaneTally
from specsched_executor.transport.inline import InlineLane
from specsched_executor.transport.lane_health import LaneHealth

__all__ = ["MAX_LANES", "Lane", "LaneError", "LaneOffer", "LaneSwitch", "LaneTable", "LaneView"]

MAX_LANES = 4


class LaneError(RuntimeError):
    """A lane that cannot be opened, activated or closed as asked."""


@dataclass(frozen=True, slots=True)
class LaneOffer:
    """A freshly opened lane. shared_memory: where to fetch it; None where it is not handed over."""

    lane: int
    epoch: int
    shared_memory: scheduler_pb2.SharedMemoryOffer | None


@dataclass(slots=True, eq=False)
class LaneRanking:
    """What the lane's scheduler wants drafts ranked by; replaced as a whole, from any thread.

    is_told: it said so; None then means that confidences hold as they are.
    """

    calibration: ConfidenceCalibration | None = None
    is_told: bool = False

    def tell(self, calibration: ConfidenceCalibration | None) -> None:
        """Rank by this from the next step on."""
        self.calibration = calibration
        self.is_told = True


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One attached scheduler's decision area, as the executor holds it, and what it was worth."""

    region: LaneRegion
    doorbell: OwnedDescriptor
    nonce: bytes | None
    health: LaneHealth = field(default_factory=LaneHealth)
    tally: LaneTally = field(default_factory=LaneTally)
    ranking: LaneRanking = field(default_factory=LaneRanking)

    @property
    def epoch(self) -> int:
        """Number of this opening; a decision must carry it."""
        return self.region.epoch


@dataclass(slots=True, eq=False)
class LaneSwitch:
    """A change of the active lane that is under way.

    step_id: the first step that follows `target`, set once and by the engine's thread alone, at the
    first step whose plan `target` has ready. So the change falls between two steps and none of them
    is without a plan because of it. yields: only if the active lane has none for that step.
    """

    target: Lane
    yields: bool = False
    step_id: int | None = None


@dataclass(frozen=True, slots=True)
class LaneView:
    """What the engine sees of the lanes: replaced as a whole, never changed.

    ready: lanes whose doorbell is rung; doorbells: int64, their descriptors, alive as long as this
    object. active: the lane whose decisions count, if any, unless `switch` has happened.
    """

    ready: tuple[Lane, ...]
    doorbells: npt.NDArray[np.int64]
    active: Lane | None
    switch: LaneSwitch | None = None

    @property
    def followed(self) -> Lane | None:
        """The lane whose decisions count now."""
        has_switched = self.switch is not None and self.switch.step_id is not None
        return self.switch.target if self.switch is not None and has_switched else self.active

    def candidates(self) -> tuple[Lane, ...]:
        """Lanes to look into for a decision: the first that has one for the step is followed."""
        followed, switch = self.followed, self.switch
        lanes = () if followed is None else (followed,)
        if switch is None or switch.step_id is not None:
            return lanes
        return (*lanes, switch.target) if switch.yields else (switch.target, *lanes)


def _view(
    ready: tuple[Lane, ...], active: Lane | None, switch: LaneSwitch | None = None
) -> LaneView:
    numbers = [lane.doorbell.fileno() for lane in ready]
    return LaneView(ready, np.array(numbers, dtype=np.int64), active, switch)


class LaneTable:
    """Up to MAX_LANES lanes. Any thread may call it; the engine only reads `view`."""

    def __init__(self, region: ExecutorRegion, handoff: HandoffServer) -> None:
        self.view = _view((), None)
        self._region = region
        self._handoff = handoff
        self._lock = threading.Lock()
        self._lanes: dict[int, Lane] = {}
        self._ready: set[int] = set()
        self._active: int | None = None
        self._switch: LaneSwitch | None = None
        self._next_epoch = 1

    def open_lane(self, *, share_memory: bool = True) -> LaneOffer:
        """Open a free lane, offering its descriptors if `share_memory`.

        Raises LaneError where all are taken.
        """
        with self._lock:
            free = [index for index in range(MAX_LANES) if index not in self._lanes]
            if not free:
                raise LaneError(f"all {MAX_LANES} lanes are taken by attached schedulers")
            lane = self._create(free[0], share_memory=share_memory)
            self._lanes[free[0]] = lane
        return LaneOffer(lane=free[0], epoch=lane.epoch, shared_memory=self._offer(lane))

    def run_inline(self, lane: int) -> InlineLane:
        """Take the scheduler's place at `lane`, which is handed to nobody from now on."""
        with self._lock:
            self._require(lane)
            opened = self._lanes[lane]
            self._withdraw(opened)
        return InlineLane(self._region, opened.region, opened.doorbell)

    def lane_ready(self, lane: int) -> None:
        """Ring the doorbell of `lane` from the next plan request on."""
        with self._lock:
            self._require(lane)
            self._ready.add(lane)
            self._publish()

    def close_lane(self, lane: int) -> None:
        """Forget `lane`; what its scheduler still writes is never read. Idempotent."""
        with self._lock:
            closed = self._lanes.pop(lane, None)
            if closed is None:
                return
            self._withdraw(closed)
            self._ready.discard(lane)
            if self._active == lane:
                self._active = None
            if self._switch is not None and self._switch.target is closed:
                self._switch = None
            self._publish()

    def activate(self, lane: int | None) -> None:
        """Have the decisions of `lane`, which must be ready, count at once; None: nobody's."""
        with self._lock:
            if lane is not None:
                self._require_ready(lane)
            self._active = lane
            self._switch = None
            self._publish()

    def begin_switch(self, lane: int, *, yields: bool = False) -> LaneSwitch:
        """Have `lane`, which must be ready, count from the first step whose plan it has ready.

        yields: and for which the active lane has none. The engine says in the answer when that
        was; `activate` completes or takes it back.
        """
        with self._lock:
            self._require_ready(lane)
            self._switch = LaneSwitch(self._lanes[lane], yields)
            self._publish()
            return self._switch

    def lane(self, lane: int) -> Lane:
        """The open lane of that number."""
        with self._lock:
            self._require(lane)
            return self._lanes[lane]

    def heartbeat_ns(self, lane: int) -> int:
        """When the planner of `lane` was last alive (CLOCK_MONOTONIC), 0 if never."""
        return int(heartbeat_ns(self.lane(lane).region.words))

    def close(self) -> None:
        """Close every lane."""
        for lane in tuple(self._lanes):
            self.close_lane(lane)

    def _create(self, index: int, *, share_memory: bool) -> Lane:
        region = create_lane_region(self._region.boot_id, index, self._next_epoch)
        self._next_epoch += 1
        doorbell = OwnedDescriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        if not share_memory:
            return Lane(region, doorbell, nonce=None)
        shared = SharedDescriptors(self._region.fd, region.fd, doorbell)
        return Lane(region, doorbell, nonce=self._handoff.offer(shared))

    def _offer(self, lane: Lane) -> scheduler_pb2.SharedMemoryOffer | None:
        if lane.nonce is None:
            return None
        return scheduler_pb2.SharedMemoryOffer(
            handoff_socket_path=os.fspath(self._handoff.path),
            nonce=lane.nonce,
            abi_version=ABI_VERSION,
            executor_region_bytes=self._region.words.size * WORD_BYTES,
            lane_region_bytes=lane.region.words.size * WORD_BYTES,
        )

    def _withdraw(self, lane: Lane) -> None:
        if lane.nonce is not None:
            self._handoff.withdraw(lane.nonce)

    def _require(self, lane: int) -> None:
        if lane not in self._lanes:
            raise LaneError(f"lane {lane} is not open, open are {sorted(self._lanes)}")

    def _require_ready(self, lane: int) -> None:
        self._require(lane)
        if lane not in self._ready:
            raise LaneError(f"lane {lane} is not ready: its scheduler has mapped nothing")

    def _publish(self) -> None:
        ready = tuple(self._lanes[index] for index in sorted(self._ready))
        active = None if self._active is None else self._lanes[self._active]
        self.view = _view(ready, active, self._switch)
