"""Puts the loop of a device together."""

from __future__ import annotations

from dataclasses import dataclass

from specsched_kernels.draft_distribution import DraftDistribution

from specsched_executor.core import Drafter, ModelConfig, TargetModel
from specsched_executor.device.device_step import DeviceStep
from specsched_executor.device.drafter import DeviceDrafter, NoDeviceDrafter
from specsched_executor.device.graph_sizes import GraphSizes
from specsched_executor.device.graphs import CudaReplayer, Replayer, RerunReplayer, StepGraphs
from specsched_executor.device.host_drafts import FedDrafter, MirroredDraftTable
from specsched_executor.device.pipelined_loop import PipelinedLoop
from specsched_executor.device.runner import DeviceRunner
from specsched_executor.device.step_arrays import DeviceSizes
from specsched_executor.engine.blocks import BlockPool
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.delivery import Delivery
from specsched_executor.engine.drafting import Calibrations, Drafting
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.slot_columns import SlotColumns

__all__ = ["DeviceParts", "build_device_parts", "device_sizes"]


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """A step, its graphs and who drafts: what is made before anything is served."""

    step: DeviceStep
    graphs: StepGraphs
    host_drafter: Drafter | None
    num_kv_blocks: int

    def build_loop(
        self,
        gate: ConfidenceGate,
        config: EngineConfig,
        delivery: Delivery,
        calibrations: Calibrations = lambda: None,
    ) -> PipelinedLoop:
        """The loop of an engine."""
        pool = BlockPool(config.num_kv_blocks, config.block_size)
        columns = SlotColumns(
            config.max_num_seqs,
            self.step.sizes.max_blocks,
            config.context_tokens(self.step.model_config.max_context_tokens),
            has_recorded_outcomes=config.has_recorded_outcomes,
        )
        host_drafting = None
        release = _release_nothing
        if self.host_drafter is not None:
            fed = self.step.drafter
            if not isinstance(fed, FedDrafter):
                raise TypeError(f"a drafter on the host beside {fed.name} on the device")
            drafts = MirroredDraftTable(self.step.tables, fed)
            host_drafting = Drafting(self.host_drafter, drafts, columns, calibrations)
            release = self.host_drafter.release
        return PipelinedLoop(
            config=config,
            gate=gate,
            runner=DeviceRunner(self.step, self.graphs, columns, calibrations),
            host_drafting=host_drafting,
            residency=Residency(pool, columns, release),
            columns=columns,
            pool=pool,
            delivery=delivery,
        )


def device_sizes(config: EngineConfig, model: ModelConfig) -> DeviceSizes:
    """The largest step of an engine."""
    return DeviceSizes(
        max_requests=config.max_num_seqs,
        max_rows=config.max_num_batched_tokens,
        max_draft_tokens=max(config.max_draft_tokens, 1),
        max_blocks=config.blocks_per_request(model.max_context_tokens),
        block_size=config.block_size,
    )


def build_device_parts(
    model: TargetModel,
    drafter: Drafter | DeviceDrafter,
    config: EngineConfig,
    graph_sizes: GraphSizes,
    replayer: Replayer | None = None,
    *,
    distribution: DraftDistribution | None = None,
) -> DeviceParts:
    """Allocates the KV cache and all that steps share; captures nothing yet.

    A drafter on the host is fed to the device, one on the device runs there. distribution: of a
    stochastic one on the host, see DeviceDrafter.
    """
    sizes = device_sizes(config, model.config)
    host_drafter: Drafter | None = None
    if isinstance(drafter, DeviceDrafter):
        on_device = drafter
    elif drafter.name == "none":
        on_device = NoDeviceDrafter()
    else:
        host_drafter = drafter
        on_device = FedDrafter(drafter.name, distribution)
    kv_cache = model.allocate_kv_cache(config.num_kv_blocks, config.block_size)
    step = DeviceStep(model, kv_cache, on_device, sizes)
    if replayer is None:
        is_cuda = step.device.type == "cuda"
        replayer = CudaReplayer(step.device) if is_cuda else RerunReplayer()
    graphs = StepGraphs(step, graph_sizes, replayer)
    return DeviceParts(step, graphs, host_drafter, config.num_kv_blocks)


def _release_nothing(slot_id: int) -> None:
    """The device's tables are told of a new request by its generation."""
