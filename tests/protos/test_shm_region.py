"""Layout, sealing and what a receiver refuses."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.shm import (
    ExecutorRegion,
    LayoutError,
    RegionError,
    RegionShape,
    create_executor_region,
    create_lane_region,
    executor_region_bytes,
    lane_region_bytes,
    open_executor_region,
    open_lane_region,
)
from specsched_protocol.shm import layout as shm_layout
from specsched_protocol.shm.layout import HEADER_WORDS, executor_layout

BOOT_ID = bytes(range(200, 216))
SHAPE = RegionShape(max_requests=3, max_draft_tokens=4, num_report_slots=2)


def reopen(region: ExecutorRegion, **changed: object) -> ExecutorRegion:
    arguments = {"max_requests": 3, "max_draft_tokens": 4, "boot_id": BOOT_ID} | changed
    return open_executor_region(region.fd, **arguments)  # type: ignore[arg-type]


@given(
    max_requests=st.sampled_from([1, 3, 256, 65536]),
    max_draft_tokens=st.integers(1, 64),
    num_report_slots=st.integers(2, 300),
)
def test_blocks_do_not_overlap_and_are_aligned(max_requests, max_draft_tokens, num_report_slots):
    layout = executor_layout(RegionShape(max_requests, max_draft_tokens, num_report_slots))
    starts = [
        layout.publication,
        layout.report_head,
        *(layout.confidence + i * layout.confidence_stride for i in range(2)),
        *(layout.request + i * layout.request_stride for i in range(2)),
        *(layout.report + i * layout.report_stride for i in range(num_report_slots)),
        layout.num_words,
    ]
    assert starts[0] >= HEADER_WORDS
    assert all(low < high for low, high in pairwise(starts))
    assert all(start % 16 == 0 for start in starts)
    # A block holds its sequence word and all rows.
    row_words = shm_layout.CONFIDENCE_ROW_FIXED_WORDS + -(-max_draft_tokens // 2)
    assert layout.confidence_stride >= 3 + max_requests * row_words
    assert layout.request_stride >= 1 + 9 + 3 * max_requests
    assert layout.report_stride >= 1 + 8 + 2 * max_requests


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_requests", 0),
        ("max_requests", 65537),
        ("max_draft_tokens", 65),
        ("num_report_slots", 1),
    ],
)
def test_impossible_shapes_name_the_field(field: str, value: int):
    with pytest.raises(LayoutError, match=f"{field} is {value}, accepted are"):
        RegionShape(**({"max_requests": 1, "max_draft_tokens": 1} | {field: value}))


def test_receiver_sees_what_the_creator_writes_and_cannot_write():
    created = create_executor_region(SHAPE, BOOT_ID)
    received = reopen(created)
    created.words[-1] = 77
    assert received.words[-1] == 77
    assert received.layout == created.layout
    with pytest.raises(ValueError, match="read-only"):
        received.words[-1] = 1
    with pytest.raises(PermissionError):
        mmap.mmap(created.fd.fileno(), 512, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.pwrite(created.fd.fileno(), b"x", 0)


def test_lane_is_written_by_the_scheduler_only():
    created = create_lane_region(BOOT_ID, lane=2, epoch=9)
    received = open_lane_region(created.fd, BOOT_ID, lane=2, epoch=9)
    received.words[-1] = 5
    assert created.words[-1] == 5
    with pytest.raises(ValueError, match="read-only"):
        created.words[-1] = 1


@pytest.mark.parametrize(
    "create",
    [lambda: create_executor_region(SHAPE, BOOT_ID), lambda: create_lane_region(BOOT_ID, 0, 1)],
)
def test_sizes_and_seals_are_final(create: Callable[[], ExecutorRegion]):
    region = create()
    size = os.fstat(region.fd.fileno()).st_size
    for other in (size - 8, size + 8):
        with pytest.raises(PermissionError):
            os.ftruncate(region.fd.fileno(), other)
    with pytest.raises(PermissionError):
        fcntl.fcntl(region.fd.fileno(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert fcntl.fcntl(region.fd.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_announced_sizes_are_those_of_the_files():
    assert os.fstat(create_executor_region(SHAPE, BOOT_ID).fd.fileno()).st_size == (
        executor_region_bytes(SHAPE)
    )
    lane = create_lane_region(BOOT_ID, 0, 1)
    assert os.fstat(lane.fd.fileno()).st_size == lane_region_bytes()


# ===================== Refusals =====================


def forge(words: np.ndarray, seals: int, num_bytes: int | None = None) -> OwnedDescriptor:
    """A memory file with this content and these seals."""
    fd = OwnedDescriptor(os.memfd_create("forged", os.MFD_ALLOW_SEALING))
    os.write(fd.fileno(), words.tobytes())
    if num_bytes is not None:
        os.ftruncate(fd.fileno(), num_bytes)
    fcntl.fcntl(fd.fileno(), fcntl.F_ADD_SEALS, seals)
    return fd


ALL_SEALS = 0x1 | 0x2 | 0x4 | 0x10


def open_forged(fd: OwnedDescriptor) -> ExecutorRegion:
    return open_executor_region(fd, 3, 4, BOOT_ID)


def test_a_faithful_copy_is_accepted():
    words = create_executor_region(SHAPE, BOOT_ID).words
    assert open_forged(forge(words, ALL_SEALS)).layout == executor_layout(SHAPE)


@pytest.mark.parametrize(
    ("index", "name"),
    [(0, "magic"), (1, "ABI version"), (2, "region kind"), (3, "header bytes"), (4, "total bytes"),
     (5, "boot id"), (6, "boot id"), (7, "max requests"), (8, "max draft tokens"),
     (11, "publication"), (13, "confidence"), (15, "request"), (19, "num words")],
)  # fmt: skip
def test_each_header_field_is_checked(index: int, name: str):
    words = create_executor_region(SHAPE, BOOT_ID).words.copy()
    words[index] += 1
    with pytest.raises(RegionError, match=f"shared region has {name}.* expected"):
        open_forged(forge(words, ALL_SEALS))


@pytest.mark.parametrize("num_slots", [-1, 0, 1, 3, 4096, 1 << 62])
def test_a_wrong_report_ring_is_refused(num_slots: int):
    words = create_executor_region(SHAPE, BOOT_ID).words.copy()
    words[9] = num_slots
    with pytest.raises(RegionError, match=r"num_report_slots|total bytes"):
        open_forged(forge(words, ALL_SEALS))


@pytest.mark.parametrize("missing", [0x1, 0x2, 0x4, 0x10])
def test_each_seal_is_required(missing: int):
    words = create_executor_region(SHAPE, BOOT_ID).words
    with pytest.raises(RegionError, match=r"seals .*, required are"):
        open_forged(forge(words, ALL_SEALS & ~missing))


@pytest.mark.parametrize("offset_bytes", [-8, 8, 4096])
def test_the_size_of_the_real_file_counts(offset_bytes: int):
    words = create_executor_region(SHAPE, BOOT_ID).words
    size = words.size * 8 + offset_bytes
    with pytest.raises(RegionError, match=f"shared region has {size} bytes, expected"):
        open_forged(forge(words, ALL_SEALS, size))


@pytest.mark.parametrize("num_bytes", [0, 8, HEADER_WORDS * 8 - 1])
def test_a_file_without_room_for_a_header_is_refused(num_bytes: int):
    with pytest.raises(RegionError, match="less than its header"):
        open_forged(forge(np.zeros(0, dtype=np.int64), ALL_SEALS, num_bytes))


def test_other_kinds_of_descriptors_are_refused(tmp_path):
    pipe_read, pipe_write = (OwnedDescriptor(fd) for fd in os.pipe())
    plain_file = OwnedDescriptor(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
    for fd in (pipe_read, pipe_write, plain_file):
        with pytest.raises(RegionError, match="not a memory file"):
            open_forged(fd)


def test_a_lane_is_no_executor_region_and_has_one_owner():
    lane = create_lane_region(BOOT_ID, lane=0, epoch=1)
    with pytest.raises(RegionError, match="seals"):
        open_forged(lane.fd)
    with pytest.raises(RegionError, match="epoch 1, expected 2"):
        open_lane_region(lane.fd, BOOT_ID, lane=0, epoch=2)
    with pytest.raises(RegionError, match="lane 0, expected 1"):
        open_lane_region(lane.fd, BOOT_ID, lane=1, epoch=1)


def test_another_executors_region_is_refused():
    with pytest.raises(RegionError, match="boot id"):
        reopen(create_executor_region(SHAPE, bytes(16)))
