"""The shared memory between one executor and its schedulers.

`layout` says where everything lies, `region` creates, seals and checks the files, `plan_area`,
`report_ring` and `lane` read and write what is in them, over `seqlock` and `atomics`.
"""

from __future__ import annotations

from specsched_protocol.shm.layout import ABI_VERSION, ExecutorLayout, LayoutError, RegionShape
from specsched_protocol.shm.region import (
    BOOT_ID_BYTES,
    ExecutorRegion,
    LaneRegion,
    RegionError,
    create_executor_region,
    create_lane_region,
    executor_region_bytes,
    lane_region_bytes,
    open_executor_region,
    open_lane_region,
)

__all__ = [
    "ABI_VERSION",
    "BOOT_ID_BYTES",
    "ExecutorLayout",
    "ExecutorRegion",
    "LaneRegion",
    "LayoutError",
    "RegionError",
    "RegionShape",
    "create_executor_region",
    "create_lane_region",
    "executor_region_bytes",
    "lane_region_bytes",
    "open_executor_region",
    "open_lane_region",
]
