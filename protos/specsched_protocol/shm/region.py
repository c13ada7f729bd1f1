"""Creating, sealing, checking and mapping the memory files behind the regions.

The creator seals the size, so that no peer can truncate a file under a mapping (SIGBUS), and the
executor's own region against new writable mappings, so that a scheduler can only read it. A
receiver checks seals and size of the real file before it looks at the header, and the header before
anything else.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.shm.layout import (
    ABI_VERSION,
    EXECUTOR_REGION,
    HEADER_WORDS,
    LANE_DECISION,
    LANE_HEARTBEAT,
    LANE_REGION,
    LANE_WORDS,
    MAGIC,
    WORD_BYTES,
    ExecutorLayout,
    LayoutError,
    RegionShape,
    executor_layout,
)

__all__ = [
    "BOOT_ID_BYTES",
    "ExecutorRegion",
    "LaneRegion",
    "RegionError",
    "create_executor_region",
    "create_lane_region",
    "executor_region_bytes",
    "lane_region_bytes",
    "open_executor_region",
    "open_lane_region",
]

Words = npt.NDArray[np.int64]

BOOT_ID_BYTES = 16
_F_SEAL_FUTURE_WRITE = 0x0010  # linux/fcntl.h; missing from the fcntl module
_NUM_COMMON_FIELDS = 7
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class RegionError(RuntimeError):
    """A region that is not what its sender announced; the message names what differs."""


@dataclass(frozen=True, slots=True)
class ExecutorRegion:
    """A mapped executor region; `words` is read-only except for its creator."""

    fd: OwnedDescriptor
    words: Words
    layout: ExecutorLayout
    boot_id: bytes


@dataclass(frozen=True, slots=True)
class LaneRegion:
    """A mapped lane region. The scheduler writes it, the executor reads it."""

    fd: OwnedDescriptor
    words: Words
    lane: int
    epoch: int
    boot_id: bytes


def executor_region_bytes(shape: RegionShape) -> int:
    """Size of the file of an executor region."""
    return executor_layout(shape).num_words * WORD_BYTES


def lane_region_bytes() -> int:
    """Size of the file of a lane region."""
    return LANE_WORDS * WORD_BYTES


def create_executor_region(shape: RegionShape, boot_id: bytes) -> ExecutorRegion:
    """A new zeroed region: writable through this mapping, read-only for every later one."""
    layout = executor_layout(shape)
    header = _executor_header(layout, boot_id)
    fd, words = _create_file("specsched-executor", header, layout.num_words)
    fcntl.fcntl(fd.fileno(), fcntl.F_ADD_SEALS, _SIZE_SEALS | _F_SEAL_FUTURE_WRITE)
    return ExecutorRegion(fd=fd, words=words, layout=layout, boot_id=boot_id)


def create_lane_region(boot_id: bytes, lane: int, epoch: int) -> LaneRegion:
    """A new zeroed lane; the executor keeps only a read-only view of it."""
    fd, words = _create_file("specsched-lane", _lane_header(boot_id, lane, epoch), LANE_WORDS)
    fcntl.fcntl(fd.fileno(), fcntl.F_ADD_SEALS, _SIZE_SEALS)
    words.flags.writeable = False
    return LaneRegion(fd=fd, words=words, lane=lane, epoch=epoch, boot_id=boot_id)


def open_executor_region(
    fd: OwnedDescriptor, max_requests: int, max_draft_tokens: int, boot_id: bytes
) -> ExecutorRegion:
    """Map a received executor region read-only.

    Raises RegionError if the file, its seals, its size or its header are not those that follow from
    the arguments.
    """
    num_words = _check_file(fd, _SIZE_SEALS | _F_SEAL_FUTURE_WRITE)
    words = _map(fd, num_words, mmap.PROT_READ)
    layout = _received_layout(words, max_requests, max_draft_tokens)
    _check_header(words, _executor_header(layout, boot_id))
    _check_size(num_words, layout.num_words)
    return ExecutorRegion(fd=fd, words=words, layout=layout, boot_id=boot_id)


def open_lane_region(fd: OwnedDescriptor, boot_id: bytes, lane: int, epoch: int) -> LaneRegion:
    """Map a received lane for writing. Raises RegionError as `open_executor_region` does."""
    num_words = _check_file(fd, _SIZE_SEALS)
    words = _map(fd, num_words, mmap.PROT_READ | mmap.PROT_WRITE)
    _check_header(words, _lane_header(boot_id, lane, epoch))
    _check_size(num_words, LANE_WORDS)
    return LaneRegion(fd=fd, words=words, lane=lane, epoch=epoch, boot_id=boot_id)


# ===================== Header =====================


def _common_header(kind: int, num_words: int, boot_id: bytes) -> dict[str, int]:
    if len(boot_id) != BOOT_ID_BYTES:
        raise LayoutError(f"boot id has {len(boot_id)} bytes, expected {BOOT_ID_BYTES}")
    return {
        "magic": MAGIC,
        "ABI version": ABI_VERSION,
        "region kind": kind,
        "header bytes": HEADER_WORDS * WORD_BYTES,
        "total bytes": num_words * WORD_BYTES,
        "boot id": int.from_bytes(boot_id[:8], "little", signed=True),
        "boot id (second half)": int.from_bytes(boot_id[8:], "little", signed=True),
    }


def _executor_header(layout: ExecutorLayout, boot_id: bytes) -> dict[str, int]:
    fields = {name.replace("_", " "): value for name, value in layout._asdict().items()}
    return _common_header(EXECUTOR_REGION, layout.num_words, boot_id) | fields


def _lane_header(boot_id: bytes, lane: int, epoch: int) -> dict[str, int]:
    offsets = {"heartbeat": LANE_HEARTBEAT, "decision": LANE_DECISION}
    return (
        _common_header(LANE_REGION, LANE_WORDS, boot_id) | {"lane": lane, "epoch": epoch} | offsets
    )


def _received_layout(words: Words, max_requests: int, max_draft_tokens: int) -> ExecutorLayout:
    """The layout for the agreed tables; the length of the report ring is the sender's choice."""
    num_report_slots = int(
        words[_NUM_COMMON_FIELDS + ExecutorLayout._fields.index("num_report_slots")]
    )
    try:
        return executor_layout(RegionShape(max_requests, max_draft_tokens, num_report_slots))
    except LayoutError as error:
        raise RegionError(f"shared region has an impossible shape: {error}") from error


def _check_header(words: Words, expected: dict[str, int]) -> None:
    for index, (name, value) in enumerate(expected.items()):
        found = int(words[index])
        if found != value:
            raise RegionError(f"shared region has {name} {found}, expected {value}")


# ===================== File =====================


def _create_file(
    name: str, header: dict[str, int], num_words: int
) -> tuple[OwnedDescriptor, Words]:
    fd = OwnedDescriptor(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    os.ftruncate(fd.fileno(), num_words * WORD_BYTES)
    words = _map(fd, num_words, mmap.PROT_READ | mmap.PROT_WRITE)
    words[: len(header)] = list(header.values())
    return fd, words


def _map(fd: OwnedDescriptor, num_words: int, protection: int) -> Words:
    """The mapping as words; it is unmapped when the last array over it is gone."""
    mapping = mmap.mmap(fd.fileno(), num_words * WORD_BYTES, mmap.MAP_SHARED, protection)
    return np.frombuffer(mapping, dtype=np.int64, count=num_words)


def _check_file(fd: OwnedDescriptor, required_seals: int) -> int:
    """Words of the file, which is large enough for a header and can no longer change its size."""
    status = os.fstat(fd.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise RegionError("the received descriptor is not a memory file")
    try:
        seals = fcntl.fcntl(fd.fileno(), fcntl.F_GET_SEALS)
    except OSError as error:
        raise RegionError("the received descriptor is not a memory file with seals") from error
    if seals & required_seals != required_seals:
        raise RegionError(f"shared region has seals {seals:#x}, required are {required_seals:#x}")
    if status.st_size < HEADER_WORDS * WORD_BYTES:
        raise RegionError(
            f"shared region has {status.st_size} bytes, less than its header of"
            f" {HEADER_WORDS * WORD_BYTES}"
        )
    return status.st_size // WORD_BYTES


def _check_size(num_words: int, expected_words: int) -> None:
    if num_words != expected_words:
        raise RegionError(
            f"shared region has {num_words * WORD_BYTES} bytes, expected"
            f" {expected_words * WORD_BYTES}"
        )
