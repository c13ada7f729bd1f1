"""Where everything lies in a shared region. All offsets count int64 words from its start.

Two kinds of region exist. The executor's, one per executor process, read by every scheduler:

    header | publication word | report head | confidences x2 | plan request x2 | report ring

and a lane, one per attached scheduler, which writes it and nothing else:

    header | heartbeat | decision x2

Each block starts on its own pair of cache lines. A layout follows from the `RegionShape` alone:
offsets in a received header are compared with it, never used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "ABI_VERSION",
    "CONFIDENCE_FIXED_WORDS",
    "CONFIDENCE_ROW_FIXED_WORDS",
    "DECISION_WORDS",
    "EXECUTOR_REGION",
    "HEADER_WORDS",
    "LANE_DECISION",
    "LANE_DECISION_STRIDE",
    "LANE_HEARTBEAT",
    "LANE_REGION",
    "LANE_WORDS",
    "MAGIC",
    "MAX_DRAFT_TOKENS",
    "MAX_REPORT_SLOTS",
    "MAX_REQUESTS",
    "NUM_BUFFERS",
    "REPORT_FIXED_WORDS",
    "REPORT_ROW_WORDS",
    "REQUEST_FIXED_WORDS",
    "REQUEST_ROW_WORDS",
    "WORD_BYTES",
    "ExecutorLayout",
    "LayoutError",
    "RegionShape",
    "executor_layout",
]

MAGIC = int.from_bytes(b"SPECSHM\x01", "little")
ABI_VERSION = 2
"""Raised with every change of a layout or of the meaning of a word."""
EXECUTOR_REGION = 1
LANE_REGION = 2

MAX_REQUESTS = 1 << 16
MAX_DRAFT_TOKENS = 64
MAX_REPORT_SLOTS = 1 << 12

WORD_BYTES = 8
HEADER_WORDS = 32
NUM_BUFFERS = 2
_BLOCK_ALIGN_WORDS = 16  # two cache lines: the adjacent-line prefetcher pairs them

CONFIDENCE_FIXED_WORDS = 2
CONFIDENCE_ROW_FIXED_WORDS = 2
REQUEST_FIXED_WORDS = 9
REQUEST_ROW_WORDS = 3
REPORT_FIXED_WORDS = 11
REPORT_ROW_WORDS = 2
DECISION_WORDS = 14

LANE_HEARTBEAT = HEADER_WORDS
LANE_DECISION = LANE_HEARTBEAT + _BLOCK_ALIGN_WORDS
LANE_DECISION_STRIDE = _BLOCK_ALIGN_WORDS
LANE_WORDS = LANE_DECISION + NUM_BUFFERS * LANE_DECISION_STRIDE
"""Words of a lane region: a decision and its sequence fit one aligned block."""


class LayoutError(ValueError):
    """A shape that no region can have; the message names the value and its range."""


@dataclass(frozen=True, slots=True)
class RegionShape:
    """Sizes of the tables of an executor region.

    max_requests: rows of every per-request table. max_draft_tokens: k. num_report_slots: finished
    steps the report ring holds before the oldest is lost to a slow reader.
    """

    max_requests: int
    max_draft_tokens: int
    num_report_slots: int = 128

    def __post_init__(self) -> None:
        _check_range("max_requests", self.max_requests, 1, MAX_REQUESTS)
        _check_range("max_draft_tokens", self.max_draft_tokens, 1, MAX_DRAFT_TOKENS)
        _check_range("num_report_slots", self.num_report_slots, 2, MAX_REPORT_SLOTS)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise LayoutError(f"{name} is {value}, accepted are {low} to {high}")


class ExecutorLayout(NamedTuple):
    """Offsets and strides of an executor region in words; nopython code takes it as it is."""

    max_requests: int
    max_draft_tokens: int
    num_report_slots: int
    confidence_row_words: int
    publication: int
    report_head: int
    confidence: int
    confidence_stride: int
    request: int
    request_stride: int
    report: int
    report_stride: int
    num_words: int


def _block_words(payload_words: int) -> int:
    """Words of a block: sequence and payload, rounded up to the alignment."""
    return -(-(1 + payload_words) // _BLOCK_ALIGN_WORDS) * _BLOCK_ALIGN_WORDS


def executor_layout(shape: RegionShape) -> ExecutorLayout:
    """The one layout of an executor region of this shape."""
    row_words = CONFIDENCE_ROW_FIXED_WORDS + (shape.max_draft_tokens + 1) // 2
    confidence_stride = _block_words(CONFIDENCE_FIXED_WORDS + shape.max_requests * row_words)
    request_stride = _block_words(REQUEST_FIXED_WORDS + shape.max_requests * REQUEST_ROW_WORDS)
    report_stride = _block_words(REPORT_FIXED_WORDS + shape.max_requests * REPORT_ROW_WORDS)
    publication = HEADER_WORDS
    report_head = publication + _BLOCK_ALIGN_WORDS
    confidence = report_head + _BLOCK_ALIGN_WORDS
    request = confidence + NUM_BUFFERS * confidence_stride
    report = request + NUM_BUFFERS * request_stride
    return ExecutorLayout(
        max_requests=shape.max_requests,
        max_draft_tokens=shape.max_draft_tokens,
        num_report_slots=shape.num_report_slots,
        confidence_row_words=row_words,
        publication=publication,
        report_head=report_head,
        confidence=confidence,
        confidence_stride=confidence_stride,
        request=request,
        request_stride=request_stride,
        report=report,
        report_stride=report_stride,
        num_words=report + shape.num_report_slots * report_stride,
    )
