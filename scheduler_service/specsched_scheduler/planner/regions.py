"""Fetching, checking and mapping what an executor offers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.handoff import fetch_descriptors
from specsched_protocol.shm import (
    ABI_VERSION,
    ExecutorRegion,
    LaneRegion,
    RegionError,
    open_executor_region,
    open_lane_region,
)
from specsched_protocol.shm.layout import WORD_BYTES
from specsched_protocol.v1 import scheduler_pb2

__all__ = ["SchedulerRegions", "attach_regions"]


@dataclass(frozen=True, slots=True)
class SchedulerRegions:
    """The executor's region (read-only), the own lane and the doorbell: all checked.

    decided: eventfd that the planner rings after each decision, where somebody passes them on.
    """

    executor: ExecutorRegion
    lane: LaneRegion
    doorbell: OwnedDescriptor
    decided: OwnedDescriptor | None = None


def attach_regions(hello: scheduler_pb2.Hello) -> SchedulerRegions:
    """Fetch and map what `hello` offers. Blocks up to seconds: not for an event loop.

    Raises HandoffError if the executor does not hand the descriptors over, RegionError if they are
    not what `hello` announces.
    """
    offer = hello.shared_memory
    if offer.abi_version != ABI_VERSION:
        raise RegionError(
            f"the executor's shared memory has ABI version {offer.abi_version}, expected"
            f" {ABI_VERSION}"
        )
    received = fetch_descriptors(Path(offer.handoff_socket_path), offer.nonce)
    executor = open_executor_region(
        received.executor_region,
        hello.model.max_requests,
        hello.model.max_draft_tokens,
        hello.boot_id,
    )
    lane = open_lane_region(received.lane_region, hello.boot_id, hello.lane, hello.epoch)
    _check_size("executor_region_bytes", offer.executor_region_bytes, executor.words.size)
    _check_size("lane_region_bytes", offer.lane_region_bytes, lane.words.size)
    _check_doorbell(received.doorbell)
    return SchedulerRegions(executor, lane, received.doorbell)


def _check_size(field: str, announced_bytes: int, num_words: int) -> None:
    if announced_bytes != num_words * WORD_BYTES:
        raise RegionError(
            f"{field} was announced as {announced_bytes}, the file has {num_words * WORD_BYTES}"
        )


def _check_doorbell(doorbell: OwnedDescriptor) -> None:
    # Any other kind of file could be readable for ever, and the planner would never sleep.
    kind = os.readlink(f"/proc/self/fd/{doorbell.fileno()}")
    if kind != "anon_inode:[eventfd]":
        # What it is instead, a path perhaps, is nobody's business at the other end.
        raise RegionError("the doorbell is no eventfd")
    os.set_blocking(doorbell.fileno(), False)
