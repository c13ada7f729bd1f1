"""Weights in e4m3 with a float32 scale for each block, as DeepSeek publishes them."""

from __future__ import annotations

from typing import Any

import torch

from specsched_executor.model._errors import ModelFormatError, UnsupportedModelError
from specsched_executor.model.huggingface.facts import ConfigFacts

__all__ = ["block_shape", "multiply_blocks"]


def block_shape(facts: ConfigFacts) -> tuple[int, int] | None:
    """Rows and columns of a block as quantization_config states them; None: no such weights.

    Raises UnsupportedModelError for any other quantisation.
    """
    content = facts.content.get("quantization_config")
    if content is None:
        return None
    if not isinstance(content, dict) or content.get("quant_method") != "fp8":
        raise UnsupportedModelError(
            f"{facts.path}: quantization_config is {content!r}; served: None, or quant_method 'fp8'"
        )
    shape: Any = content.get("weight_block_size")
    if (
        not isinstance(shape, list | tuple)
        or len(shape) != 2
        or not all(isinstance(size, int) and size > 0 for size in shape)
    ):
        raise ModelFormatError(
            f"{facts.path}: weight_block_size is {shape!r}, expected two positive whole numbers"
        )
    return shape[0], shape[1]


def multiply_blocks(weight: torch.Tensor, scales: torch.Tensor, shape: tuple[int, int]) -> None:
    """weight *= the scale of each block, in place.

    weight: float32 [rows, columns]. scales: one for each block of `shape`, the last ones cut off.
    """
    rows, columns = weight.shape
    for block, start in enumerate(range(0, rows, shape[0])):
        band = weight[start : start + shape[0]]
        band *= scales[block].repeat_interleave(shape[1])[:columns]
