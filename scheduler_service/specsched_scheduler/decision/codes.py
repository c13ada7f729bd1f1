"""Numbers that compiled code, shared memory and protos share. Values equal the proto enums'."""

from __future__ import annotations

import enum

__all__ = [
    "NO_CAP",
    "SPEED_POLICIES",
    "DecisionFlags",
    "Feature",
    "ModelState",
    "PolicyCode",
]

NO_CAP = 0xFFFF_FFFF
"""A `max_budget` or `max_verify_len` that does not bind."""


class ModelState(enum.IntEnum):
    """Whether the cost model can price a step."""

    OK = 1
    NO_MODEL = 2


class DecisionFlags(enum.IntFlag):
    """Why a decision is as it is. Bit of flag f of the proto: 1 << (f - 1)."""

    NONE = 0
    FLAT = 1
    CAPPED = 2
    REPAIRED = 4
    PRIOR = 8
    EXTRAPOLATED = 16
    OUT_OF_BOUND = 32
    PROBE = 64
    ROWS_BOUND = 128
    FILL_SIZE = 256


class Feature(enum.IntFlag):
    """What a policy can be told to leave out, so that it can be measured what each brings.

    16 stays free: it was another part's, and records name parts by their number.
    """

    NONE = 0
    RANKING = 1
    """Drafts compete for rows; without it every request gets the same cap."""
    CONTEXT = 2
    """The context read is in the price."""
    CALIBRATION = 4
    """Confidences count as calibrated, in the budget and in the executor's ranking."""
    PRIOR = 8
    """Drafts without a confidence count as the mean of their position, else as certain."""
    DRAFT_LENGTH = 32
    """Drafts are as long as pays, else always full: see decision.draft_length."""
    FILL = 64
    """The budget is fitted to the captured size that runs the step."""
    CORRECTION = 128
    """Prices are the profile's as corrected by measured steps."""


class PolicyCode(enum.IntEnum):
    """The policies that the compiled decision knows. PYTHON: one that it does not."""

    PYTHON = 0
    THROUGHPUT = 1
    RATIO = 2
    GREEDY_CAUSAL = 3
    FIXED = 4
    THRESHOLD = 5
    OFF = 6
    SLO = 7


SPEED_POLICIES = (int(PolicyCode.THROUGHPUT), int(PolicyCode.SLO))
"""Those that look for the most tokens per time that drafts can bring: prefill is charged to nobody,
and of few requests less than all drafts has to be clearly better. Plain integers, which numba
inlines; enum members it would look up."""
