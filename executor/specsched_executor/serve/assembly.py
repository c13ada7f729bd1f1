"""Builds the parts of an executor from its options."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import structlog
import torch
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import executor_pb2, plan_pb2, scheduler_pb2

from specsched_executor.attach import (
    AttachConfig,
    AttachManager,
    AttachTotals,
    ExecutorFacts,
    SchedulerEndpoint,
    SupervisionConfig,
)
from specsched_executor.calibration import ConfidenceCalibration
from specsched_executor.config import ExecutorConfig
from specsched_executor.device import DeviceParts
from specsched_executor.drafters import NoDrafter
from specsched_executor.drafters.acceptance_trace import read_acceptance_trace
from specsched_executor.engine import Engine, EngineConfig
from specsched_executor.gateway import check_port
from specsched_executor.model import LoadedModel, LoadOptions, fastest_dtype, load_model
from specsched_executor.model.sparse_mla import IndexerLayout
from specsched_executor.model.spec import Dtype
from specsched_executor.telemetry.telemetry import Links
from specsched_executor.transport.base import PlanTransport
from specsched_executor.transport.in_process import (
    DEFAULT_POLICY,
    InProcessTransport,
    check_policy,
)
from specsched_executor.transport.none import NoTransport
from specsched_executor.transport.shared_memory import SharedMemoryTransport

from .cost import cost_message
from .device_choice import choose_device
from .device_parts import build_parts, device_engine_config, graph_sizes
from .drafter import build_drafter, choose_drafter, drafter_calibration
from .facts import (
    EXECUTOR_VERSION,
    attention_facts,
    executor_name,
    gateway_config,
    model_facts,
    model_name,
    plan_outcomes,
)
from .progress import status
from .sizes import engine_config

__all__ = ["Executor", "build_executor", "check_what_is_taken"]

_log = structlog.get_logger(__name__)

_STEP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Executor:
    """A model with its engine, and what connects it to schedulers."""

    loaded: LoadedModel
    engine: Engine
    sizes: EngineConfig
    transport: PlanTransport
    attacher: AttachManager | None
    runs_on_gpu: bool

    def schedulers(self) -> executor_pb2.ListSchedulersResponse:
        """The schedulers attached now, and how it came that one of them is followed."""
        attacher = self.attacher
        if attacher is None:
            return executor_pb2.ListSchedulersResponse()
        return executor_pb2.ListSchedulersResponse(
            schedulers=[info.to_message() for info in attacher.attachments()],
            num_switches=attacher.num_switches(),
            elected_scheduler=attacher.elected_name,
        )

    def links(self) -> Links:
        """What there is to say of schedulers, and whether any are wanted."""
        attacher = self.attacher
        totals = AttachTotals() if attacher is None else attacher.totals()
        return Links(attacher is not None, self.schedulers(), totals)

    def start(self, on_failure: Callable[[], None]) -> None:
        """Start to serve requests and to look for schedulers; `on_failure` as in `Engine.start`."""
        self.engine.start(on_failure)
        if self.attacher is not None:
            self.attacher.start()

    def stop(self) -> None:
        """Detach, abort what is left, release the shared memory.

        The engine ends after its step. It is not waited for longer than `_STEP_TIMEOUT_S`: a first
        step may compile for minutes, and the transport outlives what is done to it here.
        """
        if self.attacher is not None:
            self.attacher.stop()
        ending = threading.Thread(target=self.engine.stop, name="engine-stop", daemon=True)
        ending.start()
        ending.join(_STEP_TIMEOUT_S)
        self.transport.close()


def check_what_is_taken(config: ExecutorConfig) -> None:
    """Whether the port and the run directory can be used: told before minutes of loading.

    Raises GatewayError before the run directory is made, and RunDirError.
    """
    check_port(gateway_config(config))
    if config.effective_scheduler == "auto":
        RunDir.open(config.run_dir).check_executor_socket()


def build_executor(config: ExecutorConfig) -> Executor:
    """Load, profile and connect; nothing runs yet.

    Raises ModelLoadError, RunDirError, GatewayError, PolicyError or ValueError for options that
    cannot be used; nothing is left of what was made before.
    """
    if config.effective_scheduler == "in-process":
        check_policy(config.policy or DEFAULT_POLICY, config.max_draft_tokens)
    if config.acceptance_trace is not None:
        read_acceptance_trace(config.acceptance_trace, config.max_draft_tokens)
    config = choose_device(config)
    if config.device == "cuda":
        graph_sizes(config, max_draft_tokens=config.max_draft_tokens)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    loaded = _load(config)
    config = choose_drafter(config, loaded.config)
    sizes, parts = _on_device(config, loaded, engine_config(config, loaded.config))
    cost = cost_message(config, loaded, sizes, parts)
    drafter = build_drafter(config, loaded, sizes) if parts is None else NoDrafter()
    calibration = drafter_calibration(config)
    capture_sizes = () if parts is None else parts.graphs.rows
    transport, attacher = _connect(
        config, loaded, sizes, cost, calibration, capture_sizes=capture_sizes
    )
    with ExitStack() as undo:
        undo.callback(transport.close)
        engine = Engine(
            loaded.model,
            drafter,
            transport,
            sizes,
            loaded.tokenizer,
            calibrations=_calibrations(transport, calibration, config.max_draft_tokens),
            device=parts,
        )
        undo.pop_all()
    if attacher is not None:
        attacher.plan_outcomes = lambda: plan_outcomes(engine.stats())
    return Executor(loaded, engine, sizes, transport, attacher, parts is not None)


def _on_device(
    config: ExecutorConfig, loaded: LoadedModel, sizes: EngineConfig
) -> tuple[EngineConfig, DeviceParts | None]:
    """Sizes as the memory of a GPU allows, and what runs there; None on a CPU."""
    if config.device != "cuda":
        return sizes, None
    free_bytes, _ = torch.cuda.mem_get_info()
    sizes = device_engine_config(config, loaded, sizes, free_bytes)
    return sizes, build_parts(config, loaded, sizes)


def _load(config: ExecutorConfig) -> LoadedModel:
    on_gpu = config.device == "cuda"
    fastest = Dtype.BFLOAT16 if on_gpu else fastest_dtype()
    dtype = fastest if config.dtype == "auto" else Dtype(config.dtype)
    options = LoadOptions(
        dtype,
        config.max_context_tokens,
        device="cuda" if on_gpu else "cpu",
        is_dummy=config.load_format == "dummy",
        preset=config.preset,
        is_scheduled=config.effective_scheduler != "off",
        indexer_layout=None
        if config.indexer_layout == "auto"
        else IndexerLayout(config.indexer_layout),
    )
    _log.info("loading the model")
    started = time.monotonic()
    with status("loading the model"):
        loaded = load_model(config.model, options)
    _log.info(
        "model loaded",
        model=model_name(config, loaded),
        path=str(loaded.source),
        dtype=loaded.dtype,
        device=options.device,
        seconds=round(time.monotonic() - started, 2),
    )
    _log.info("attention chosen", **attention_facts(loaded.model.attention_plan))
    return loaded


def _calibrations(
    transport: PlanTransport, calibration: scheduler_pb2.Calibration, max_draft_tokens: int
) -> Callable[[], ConfidenceCalibration | None]:
    """What drafts are ranked by: as the scheduler says, without one as was measured beforehand."""
    measured = ConfidenceCalibration.from_message(calibration, max_draft_tokens)
    if not isinstance(transport, SharedMemoryTransport):
        return lambda: measured
    transport.initial_calibration = measured
    return transport.calibration


def _connect(
    config: ExecutorConfig,
    loaded: LoadedModel,
    sizes: EngineConfig,
    cost: plan_pb2.CostModel,
    calibration: scheduler_pb2.Calibration,
    *,
    capture_sizes: tuple[int, ...],
) -> tuple[PlanTransport, AttachManager | None]:
    if config.effective_scheduler == "off":
        return NoTransport(), None
    if config.effective_scheduler == "in-process":
        policy = config.policy or DEFAULT_POLICY
        return _in_process(policy, config, sizes, cost, calibration), None
    run_dir = RunDir.open(config.run_dir)
    shape = RegionShape(sizes.max_num_seqs, config.max_draft_tokens)
    transport = SharedMemoryTransport(run_dir, shape)
    if config.fallback == "embedded":
        transport.embedded = _in_process(DEFAULT_POLICY, config, sizes, cost, calibration)
    facts = ExecutorFacts(
        boot_id=transport.boot_id,
        name=executor_name(),
        version=EXECUTOR_VERSION,
        model=model_facts(config, loaded, sizes),
        capture_sizes=capture_sizes,  # none: any number of rows is a size
        cost=cost,
        current_step_id=lambda: transport.counters().num_requests,
        calibration=calibration,
    )
    return transport, AttachManager(run_dir, transport, facts, _attach_config(config))


def _in_process(
    policy: str,
    config: ExecutorConfig,
    sizes: EngineConfig,
    cost: plan_pb2.CostModel,
    calibration: scheduler_pb2.Calibration,
) -> InProcessTransport:
    return InProcessTransport(
        policy,
        cost,
        max_requests=sizes.max_num_seqs,
        max_draft_tokens=config.max_draft_tokens,
        calibration=calibration,
    )


def _attach_config(config: ExecutorConfig) -> AttachConfig:
    tls = config.scheduler_tls
    return AttachConfig(
        endpoints=tuple(
            SchedulerEndpoint.of_address(address, tls) for address in config.scheduler_addresses
        ),
        supervision=SupervisionConfig(failover_after_ms=config.failover_after_ms),
        shares_memory=config.transport != "inline",
        accepts_inline=config.transport != "shared-memory",
    )
