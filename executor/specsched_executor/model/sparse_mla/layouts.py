"""How the lightning indexer's queries are laid out, decided once per start from what a device can.

device                          scheduled   requests   layout
a CPU, or no working DeepGEMM   any         any        generic
DeepGEMM                        no          any        uniform
DeepGEMM, varlen (SM100 on)     yes         any        native
DeepGEMM, no varlen (SM90)      yes         1          uniform
DeepGEMM, no varlen (SM90)      yes         2 or more  flattened
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import torch
from specsched_kernels.deep_gemm import DeepGemm, DeepGemmUnavailable, load_deep_gemm

from specsched_executor.model.backend_traits import BackendTraits, CaptureLevel

__all__ = [
    "IndexerDevice",
    "IndexerLayout",
    "IndexerPlan",
    "choose_layout",
    "indexer_traits",
    "probe_indexer",
    "step_layout",
]

_DEEP_GEMM_HEADS: Final = (32, 64)


class IndexerLayout(enum.StrEnum):
    """native: rows with their request, as DeepGEMM's varlen kernel takes them. flattened: rows of
    one token each, with a context length and a block table of their own, made on the device.
    uniform: the same number of rows for each request, known to the host. generic: rows with their
    request, for kernels of ours.
    """

    NATIVE = "native"
    FLATTENED = "flattened"
    UNIFORM = "uniform"
    GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class IndexerDevice:
    """What was found out about a device.

    capability: CUDA's, major and minor; None: a CPU. deep_gemm: None where it cannot be used, for
    `reason`.
    """

    capability: tuple[int, int] | None = None
    deep_gemm: DeepGemm | None = None
    reason: str = ""

    @property
    def has_varlen(self) -> bool:
        """Whether DeepGEMM's paged logits take rows with their request."""
        return self.deep_gemm is not None and self.deep_gemm.has_varlen


def probe_indexer(device: torch.device, index_heads: int) -> IndexerDevice:
    """Find out by trying; the first time it takes seconds, as DeepGEMM compiles its kernels."""
    if device.type != "cuda":
        return IndexerDevice(reason="no CUDA device is used")
    capability = torch.cuda.get_device_capability(device)
    if index_heads not in _DEEP_GEMM_HEADS:
        accepted = " or ".join(map(str, _DEEP_GEMM_HEADS))
        reason = f"the indexer has {index_heads} heads, DeepGEMM takes {accepted}"
        return IndexerDevice(capability, reason=reason)
    found = load_deep_gemm()
    if isinstance(found, DeepGemmUnavailable):
        return IndexerDevice(capability, reason=found.reason)
    return IndexerDevice(capability, found)


def choose_layout(device: IndexerDevice, *, is_scheduled: bool, num_requests: int) -> IndexerLayout:
    """The layout of a step, see the table above.

    is_scheduled: whether a scheduler may decide what is verified, so that only the device knows
    query lengths. num_requests: those in the step; a single one sends all its rows, which host and
    device agree on.
    """
    if device.deep_gemm is None:
        return IndexerLayout.GENERIC
    if not is_scheduled:
        return IndexerLayout.UNIFORM
    if device.has_varlen:
        return IndexerLayout.NATIVE
    return IndexerLayout.UNIFORM if num_requests == 1 else IndexerLayout.FLATTENED


def step_layout(chosen: IndexerLayout, *, has_prompts: bool, is_uniform: bool) -> IndexerLayout:
    """What a step really runs in. is_uniform: whether the host knows that all requests are alike.

    With prompts it is generic: DeepGEMM compiles for every 32 rows more, which takes seconds, and
    there may be any number of rows then. Sizes that are captured are compiled when they are. A
    uniform step of unequal requests is flattened.
    """
    if has_prompts:
        return IndexerLayout.GENERIC
    if chosen is IndexerLayout.UNIFORM and not is_uniform:
        return IndexerLayout.FLATTENED
    return chosen


@dataclass(frozen=True, slots=True)
class IndexerPlan:
    """What a device can, and what it is wanted for.

    is_scheduled: see `choose_layout`. forced: the layout of every step, whatever would be chosen.
    """

    device: IndexerDevice
    is_scheduled: bool
    forced: IndexerLayout | None = None

    @property
    def obstacle(self) -> str:
        """Why the device cannot do the layout that is forced; empty where it can."""
        if self.forced in {None, IndexerLayout.GENERIC}:
            return ""
        if self.device.deep_gemm is None:
            return f"DeepGEMM cannot be used: {self.device.reason}"
        if self.forced is IndexerLayout.NATIVE and not self.device.has_varlen:
            return "DeepGEMM has no varlen kernel for it"
        return ""

    def layout(self, num_requests: int = 2) -> IndexerLayout:
        """That of a step of so many requests."""
        return self.forced or choose_layout(
            self.device, is_scheduled=self.is_scheduled, num_requests=num_requests
        )


def indexer_traits(layout: IndexerLayout) -> BackendTraits:
    """What steps in a layout may be."""
    is_uniform = layout is IndexerLayout.UNIFORM
    return BackendTraits(
        name=f"the {layout} indexer",
        capture=CaptureLevel.UNIFORM_BATCH if is_uniform else CaptureLevel.ALWAYS,
        lengths_may_differ=not is_uniform,
    )
