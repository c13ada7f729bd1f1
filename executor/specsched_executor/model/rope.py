"""Rotary frequencies and the table of their cosines and sines."""

from __future__ import annotations

import math

import torch

from specsched_executor.model.spec import (
    DividedRopeScaling,
    LinearRopeScaling,
    Llama3RopeScaling,
    RopeScaling,
    YarnRopeScaling,
)


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> torch.Tensor:
    """float64 [head_dim / 2]: theta^(-2i / head_dim), scaled as the checkpoint asks."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = theta**-exponents
    match scaling:
        case None:
            return frequencies
        case LinearRopeScaling():
            return frequencies / scaling.factor
        case DividedRopeScaling():
            return frequencies / torch.tensor(scaling.divisors, dtype=torch.float64)
        case Llama3RopeScaling():
            return _llama3(frequencies, scaling)
        case YarnRopeScaling():
            return _yarn(frequencies, theta, scaling)


def _llama3(frequencies: torch.Tensor, scaling: Llama3RopeScaling) -> torch.Tensor:
    """The band between the two wavelengths is interpolated linearly in original / wavelength."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)


def _yarn(frequencies: torch.Tensor, theta: float, scaling: YarnRopeScaling) -> torch.Tensor:
    """The ramp is linear in the index of the dimension, between whole numbers."""
    num_dims = 2 * len(frequencies)

    def dimension_that_turns(times: float) -> float:
        wavelength = scaling.original_max_position / times
        return num_dims * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(dimension_that_turns(scaling.beta_fast)), 0)
    last = min(math.ceil(dimension_that_turns(scaling.beta_slow)), num_dims - 1)
    index = torch.arange(len(frequencies), dtype=torch.float64)
    slow = ((index - first) / max(last - first, 1e-3)).clamp(0.0, 1.0)
    return frequencies * (1.0 - slow + slow / scaling.factor)


def cos_sin_table(
    frequencies: torch.Tensor, max_positions: int, scaling: RopeScaling | None = None
) -> torch.Tensor:
    """float32 [max_positions, head_dim]: cosines of all angles, then sines, per position."""
    angles = torch.arange(max_positions, dtype=torch.float64)[:, None] * frequencies
    amplitude = scaling.amplitude if isinstance(scaling, YarnRopeScaling) else 1.0
    return torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(amplitude).float()
