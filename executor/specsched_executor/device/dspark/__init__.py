"""The DSpark drafter within the step of a device."""

from specsched_executor.device.dspark.drafter import DeviceDSpark

__all__ = ["DeviceDSpark"]
