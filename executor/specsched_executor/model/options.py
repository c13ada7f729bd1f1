"""Options of loading a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_executor.model.linear import LinearLayout, packed_linear
from specsched_executor.model.sparse_mla import IndexerLayout
from specsched_executor.model.spec import Dtype


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a model.

    dtype: precision of weights and matrix products. max_context_tokens: serve at most this many
    positions per request; None: what the checkpoint was made for. linear_layout: see LinearLayout.
    device: where weights, cache and products are, as torch names it. is_dummy: random weights, in
    the shape of the checkpoint or of `preset`, one of `presets.PRESETS`.
    is_scheduled: whether a scheduler may decide what is verified. indexer_layout: see
    `plan_attention`.
    Raises ValueError for a context that is not positive.
    """

    dtype: Dtype = Dtype.FLOAT32
    max_context_tokens: int | None = None
    linear_layout: LinearLayout = LinearLayout.AUTO
    device: str = "cpu"
    is_dummy: bool = False
    preset: str | None = None
    is_scheduled: bool = True
    indexer_layout: IndexerLayout | None = None

    def __post_init__(self) -> None:
        if self.max_context_tokens is not None and self.max_context_tokens < 1:
            raise ValueError(f"max_context_tokens is {self.max_context_tokens}; must be at least 1")


def fastest_dtype() -> Dtype:
    """What models run fastest in on this CPU, a row's bits being the same among any others.

    bfloat16 where there are matrix units for it, which is where both was measured; else float32.
    """
    has_units = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return Dtype.BFLOAT16 if has_units and packed_linear(torch.bfloat16) else Dtype.FLOAT32
