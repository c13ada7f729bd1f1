"""The executor on a device: steps without read-back, captured in graphs, one ahead of the host."""

from __future__ import annotations

from specsched_executor.device.assembly import DeviceParts, build_device_parts
from specsched_executor.device.drafter import DeviceDrafter
from specsched_executor.device.graph_sizes import GraphSizes, default_rows, parse_rows
from specsched_executor.device.graphs import CaptureReport

__all__ = [
    "CaptureReport",
    "DeviceDrafter",
    "DeviceParts",
    "GraphSizes",
    "build_device_parts",
    "default_rows",
    "parse_rows",
]
