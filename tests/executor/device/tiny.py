"""The tiny target and drafter of the engine's tests, as steps on a device meet them."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from specsched_executor.core import ModelBatch, TargetOutput
from specsched_executor.device import GraphSizes, build_device_parts
from specsched_executor.device.drafter import ContextRows, DraftJob
from specsched_executor.engine import EngineConfig
from specsched_executor.engine.admission import Admission
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.engine.delivery import Delivery
from specsched_executor.engine.stopping import Detokenizer
from specsched_executor.sampling import Purpose, draw, keyed_uniforms
from specsched_kernels.draft_distribution import DraftDistribution

from tests.executor.engine import tiny

GRAPHS = GraphSizes(
    rows=(1, 2, 4, 8, 16), prompt_rows=(16, 32), draft_requests=(1, 2, 4), draft_lens=(2, 3)
)


class PaddedTarget(tiny.TableTarget):
    """TableTarget for padded batches: rows past the last request's have slot -1."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.num_padded_rows: list[int] = []

    def forward(self, batch: ModelBatch, kv_cache: tiny.TokenCache) -> TargetOutput:
        num_rows = int(batch.query_start_loc[-1])
        assert (batch.slot_mapping[num_rows:] == -1).all()
        assert (batch.slot_mapping[:num_rows] >= 0).all()
        if num_rows == 0:  # capturing
            shape = (len(batch.logit_rows), self.config.vocab_size)
            return TargetOutput(torch.zeros(shape))
        self.num_padded_rows.append(len(batch.slot_mapping))
        lens = batch.query_start_loc.diff()
        assert lens.max() <= batch.max_query_len
        assert batch.context_lens.max() <= batch.max_context_tokens
        exact = ModelBatch(
            token_ids=batch.token_ids[:num_rows],
            positions=batch.positions[:num_rows],
            slot_mapping=batch.slot_mapping[:num_rows],
            query_start_loc=batch.query_start_loc,
            context_lens=batch.context_lens,
            block_tables=batch.block_tables,
            logit_rows=batch.logit_rows,
        )
        return super().forward(exact, kv_cache)


class DeviceTableDrafter:
    """StochasticDrafter on the device: q(next | token before), [V, V], by slot."""

    name = "stochastic"
    feature_layers: tuple[int, ...] = ()
    is_idle = False

    def __init__(
        self, table: np.ndarray, num_slots: int, max_draft_tokens: int, confidence_of=None
    ):
        self.table = torch.tensor(table, dtype=torch.float32)
        self.confidence_of = confidence_of or (lambda before: torch.full(before.shape, 0.5))
        self.distribution = DraftDistribution.empty(
            num_slots, max_draft_tokens, self.table.shape[0]
        )
        self.distribution.logits.fill_(torch.nan)

    def first_tokens(self, anchors: torch.Tensor) -> torch.Tensor:
        return anchors

    def take_in(self, rows: ContextRows) -> None:
        raise AssertionError("no features were asked for")

    def draft(self, job: DraftJob) -> tuple[torch.Tensor, torch.Tensor]:
        requests, tables = job.requests, job.tables
        slots = requests.slot_ids.clamp(min=0)
        before = self.first_tokens(tables.anchor_token_ids[slots])
        tokens, confidences = [], []
        live = requests.slot_ids >= 0
        for j in range(job.num_tokens):
            distribution = self.table[before]
            positions = tables.num_tokens[slots] + j
            uniforms = keyed_uniforms(requests.seeds, positions, Purpose.DRAFT, job.step_id)
            confidences.append(self.confidence_of(before))
            before = distribution.argmax(dim=-1)
            if job.draws:
                kept = DraftDistribution.of(distribution[live])
                self.distribution.logits[slots[live], j] = kept.logits
                self.distribution.masses[slots[live], j] = kept.masses
                drawn = draw(distribution, uniforms)
                before = torch.where(requests.temperature > 0, drawn, before)
            tokens.append(before)
        return torch.stack(tokens, dim=1), torch.stack(confidences, dim=1)


class DeviceDriver(tiny.Driver):
    """A pipelined loop without the thread: tests call `step`."""

    def __init__(
        self,
        target,
        drafter,
        transport,
        config: EngineConfig,
        *,
        graphs: GraphSizes = GRAPHS,
        gate=ConfidenceGate,
        distribution=None,
        calibrations=lambda: None,
        detokenizer: Detokenizer | None = None,
    ):
        self.target, self.drafter, self.transport = target, drafter, transport
        self.ended = []
        self.admission = Admission(target.config, config, detokenizer)
        self.gate = gate(transport, config.max_num_seqs * config.max_draft_tokens)
        self.parts = build_device_parts(target, drafter, config, graphs, distribution=distribution)
        self.parts.graphs.capture_all()
        self._ids = itertools.count()
        self.active = {}
        self.loop = self.parts.build_loop(
            self.gate, config, Delivery(self.ended.append), calibrations
        )
