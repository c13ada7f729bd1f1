"""Whether the kernel grants and seals the memory that executors share with schedulers."""

from __future__ import annotations

import errno
import mmap
import os

from specsched_protocol.shm import (
    RegionError,
    RegionShape,
    create_executor_region,
    executor_region_bytes,
    open_executor_region,
)

from specsched_client.cli.doctor.findings import Code, Finding, Severity

__all__ = ["check_shared_memory"]

_LARGEST = RegionShape(max_requests=1024, max_draft_tokens=16)
"""The most that an executor can be told to serve."""
_BOOT_ID = bytes(range(16))
_NOT_SUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


def check_shared_memory(shape: RegionShape = _LARGEST) -> list[Finding]:
    """Make the region of an executor of this shape, seal it, map it as a scheduler does."""
    size = f"{executor_region_bytes(shape) / 2**20:.1f} MiB"
    try:
        region = create_executor_region(shape, _BOOT_ID)
    except PermissionError as error:
        return [_no_seals(f"memory cannot be made or sealed: {error.strerror}")]
    except OSError as error:
        what = f"{size} of shared memory are refused: {error.strerror}"
        if error.errno in _NOT_SUPPORTED:
            return [_no_seals(f"memory cannot be made or sealed: {error.strerror}")]
        remedy = "raise the limits of the process: file size (ulimit -f), descriptors (ulimit -n)"
        return [Finding(Code.MEMORY_SIZE, Severity.ERROR, what, f"{remedy}, memory of its cgroup")]
    try:
        open_executor_region(region.fd, shape.max_requests, shape.max_draft_tokens, region.boot_id)
    except RegionError as error:
        return [_no_seals(str(error))]
    if _can_be_written(region.fd.fileno()):
        return [_no_seals("sealed memory can still be mapped for writing")]
    return [Finding(Code.MEMORY, Severity.OK, f"{size} can be shared, and sealed against peers")]


def _no_seals(what: str) -> Finding:
    remedy = (
        "Linux 5.1 or newer, and a seccomp profile that allows memfd_create and fcntl F_ADD_SEALS;"
        " until then: specsched executor --transport inline"
    )
    return Finding(Code.MEMORY_SEALS, Severity.ERROR, what, remedy)


def _can_be_written(fd: int) -> bool:
    try:
        mapped = mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, mmap.PROT_WRITE)
    except PermissionError:
        return False
    mapped.close()
    return True
