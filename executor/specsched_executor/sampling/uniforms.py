"""Counter-based random numbers: a uniform is a function of its key, never of what was drawn before.

So a seeded request draws the same numbers alone, in any batch, after a preemption and with any
verify lengths.
"""

from __future__ import annotations

import enum

import torch

__all__ = ["SEED_BITS", "Purpose", "derived_seed", "keyed_uniforms"]

SEED_BITS = 63
"""Seeds are integers of so many bits, not negative."""

_GOLDEN = 0x9E37_79B9_7F4A_7C15 - (1 << 64)
_MIX_1 = 0xBF58_476D_1CE4_E5B9 - (1 << 64)
_MIX_2 = 0x94D0_49BB_1331_11EB - (1 << 64)
_FRACTION_BITS = 53


class Purpose(enum.IntEnum):
    """What a uniform decides. One key decides one thing: sharing a number would correlate them."""

    SAMPLE = 0
    ACCEPT = 1
    RESIDUAL = 2
    DRAFT = 3


def derived_seed(seed: int, index: int) -> int:
    """The seed of output `index` of a request: its own for 0, all different for one request.

    Steps of an odd constant modulo 2^63, far from the small numbers that people choose as seeds.
    """
    return (seed + index * _GOLDEN) % (1 << SEED_BITS)


def keyed_uniforms(
    seeds: torch.Tensor,
    positions: torch.Tensor,
    purpose: Purpose,
    counter: torch.Tensor | int = 0,
) -> torch.Tensor:
    """float64 in [0, 1), 53 random bits each, of the broadcast shape of the int64 keys.

    `counter` tells apart draws of the same position: a drafter passes the step it drafts in. A
    token drafted anew must not repeat the number of a dropped draft, whose confidences a plan may
    have used already (lossless invariant).

    The hash is SplitMix64's finalizer (Steele et al., 2014) over a Weyl sequence, one round a key.
    """
    state = _mix(seeds + _GOLDEN)
    state = _mix(state ^ (positions * len(Purpose) + int(purpose)) * _GOLDEN)
    state = _mix(state + (counter + 1) * _as_int64(_GOLDEN, state))
    mantissa = _shift_right(state, 64 - _FRACTION_BITS)
    return mantissa.to(torch.float64) * 2.0**-_FRACTION_BITS


def _mix(state: torch.Tensor) -> torch.Tensor:
    state = (state ^ _shift_right(state, 30)) * _MIX_1
    state = (state ^ _shift_right(state, 27)) * _MIX_2
    return state ^ _shift_right(state, 31)


def _shift_right(state: torch.Tensor, num_bits: int) -> torch.Tensor:
    """Logical shift: torch has no unsigned 64-bit arithmetic, int64 wraps as it does."""
    return (state >> num_bits) & ((1 << (64 - num_bits)) - 1)


def _as_int64(value: int, like: torch.Tensor) -> torch.Tensor:
    # Filled where it is: a copy from the host could not be captured.
    return torch.full((), value, dtype=torch.int64, device=like.device)
