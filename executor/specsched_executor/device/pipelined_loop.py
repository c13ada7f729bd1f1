"""Steps that overlap: step t is launched before the outputs of t - 1 reach the host.

Iteration t: form t, read its plan, launch it, wait for t - 1, publish the confidences that t
verifies and ask for plan t + 1, then process t - 1. Nothing waits between forming and launching.
What the host cannot know at launch is bounded: the tokens that t - 1 may commit, hence the KV room
and the drafts; tokens past a stop are discarded when they come. A drafter on the host has to see
the outputs first: then nothing overlaps and t itself is processed.
"""

from __future__ import annotations

from collections.abc import Sequence

from specsched_executor.device.runner import DeviceRunner, LaunchedStep
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import BatchEntry, StepBatch
from specsched_executor.engine.blocks import BlockPool
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.delivery import Delivery
from specsched_executor.engine.drafting import Drafting, NewDrafts
from specsched_executor.engine.fallback import Allowance
from specsched_executor.engine.inputs import BatchTensors
from specsched_executor.engine.request_loop import RequestLoop
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.target_pass import PassOutcome

__all__ = ["PipelinedLoop"]


class PipelinedLoop(RequestLoop):
    """Keeps one step in flight. host_drafting: a drafter on the host; None: the device drafts."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        gate: ConfidenceGate,
        runner: DeviceRunner,
        host_drafting: Drafting | None,
        residency: Residency,
        pool: BlockPool,
        delivery: Delivery,
    ) -> None:
        super().__init__(
            config=config, gate=gate, residency=residency, pool=pool, delivery=delivery
        )
        self._runner = runner
        self._host_drafting = host_drafting
        self._in_flight: LaunchedStep | None = None

    @property
    def has_work(self) -> bool:
        """Whether any request is running or waiting, or outputs are still to come."""
        return super().has_work or self._in_flight is not None

    def _form(self, step_id: int) -> StepBatch | None:
        """Where bounds do not fit or nothing new can run, what is in flight is awaited first."""
        if self._in_flight is not None and not self._has_room():
            self._drain()
        batch = super()._form(step_id)
        if batch is None and self._in_flight is not None:
            self._drain()
        return batch

    def _run(self, batch: StepBatch) -> None:
        allowance = self._read_plan(batch)
        self._forecast.observe(batch.entries)
        tensors = BatchTensors.of(batch)
        tensors = tensors.with_fair_weights(self._recent_tokens, allowance.fairness)
        lens = self._next_draft_lens(batch, allowance)
        launched = self._runner.launch(batch, tensors, allowance, lens)
        previous, self._in_flight = self._in_flight, launched
        self._note_launched(launched)
        collected = None if previous is None else self._collect(previous)
        self._ask_for_next(batch, allowance)
        if previous is not None and collected is not None:
            self._finish(previous, *collected)
        if self._host_drafting is not None:
            self._drain()

    def _has_room(self) -> bool:
        """Whether every request that decodes can grow to all it may have committed."""
        pool, missing = self._pool, 0
        for request in self._residency.running:
            if request.num_pending_tokens == 1:
                needed = pool.blocks_for(request.max_num_tokens)
                missing += max(0, needed - len(request.block_ids))
        return missing <= pool.num_free

    def _drain(self) -> None:
        """Wait for what is in flight and process it."""
        launched, self._in_flight = self._in_flight, None
        if launched is not None:
            self._finish(launched, *self._collect(launched))

    def _collect(self, launched: LaunchedStep) -> tuple[PassOutcome, NewDrafts]:
        """Wait for outputs; their confidences may leave once the next plan has been read."""
        outcome, drafts = self._runner.collect(launched)
        if self._host_drafting is None:
            self._gate.withhold(drafts.rows)
        return outcome, drafts

    def _finish(self, launched: LaunchedStep, outcome: PassOutcome, drafts: NewDrafts) -> None:
        for entry, bound in zip(launched.batch.entries, launched.token_bounds, strict=True):
            if not entry.request.is_over:
                entry.request.max_in_flight_tokens -= bound
        self._commit(launched.batch, outcome)
        if self._host_drafting is not None:
            self._host_drafting.observe(launched.tensors, outcome)
            length = launched.allowance.next_draft_tokens
            drafts = self._host_drafting.draft(launched.batch, outcome, length)
            self._gate.withhold(drafts.rows)
        self._finish_step(launched.batch, launched.tensors, outcome, drafts, launched.allowance)

    def _next_draft_lens(self, batch: StepBatch, allowance: Allowance) -> list[int]:
        """Drafts to make for each request at the end of the step; none where the host drafts."""
        if self._host_drafting is not None:
            return [0] * len(batch.entries)
        most = min(allowance.next_draft_tokens, self._config.max_draft_tokens)
        return [min(most, _useful_drafts(e.request)) if e.samples else 0 for e in batch.entries]

    def _note_launched(self, launched: LaunchedStep) -> None:
        """What the launch itself makes true of the requests."""
        steps = zip(launched.batch.entries, launched.token_bounds, launched.draft_lens, strict=True)
        for entry, bound, draft_len in steps:
            request = entry.request
            if entry.samples:
                request.num_cached_tokens = len(request.tokens)
                request.max_in_flight_tokens += bound
                request.is_anchor_on_device = True
                request.num_draft_tokens = draft_len
                request.was_offered_draft = draft_len > 0
            else:
                request.num_cached_tokens = entry.first_position + entry.num_base_rows

    def _note_cached(self, entry: BatchEntry, num_new_tokens: int) -> None:
        """The anchor's own row is part of the step in flight, if the request is."""
        request = entry.request
        if entry.samples:
            # Called before the new tokens are appended.
            is_launched = request.max_in_flight_tokens > 0
            request.num_cached_tokens = len(request.tokens) + num_new_tokens - (not is_launched)

    def _abandon(self) -> Sequence[ActiveRequest]:
        """After a fault nothing that was launched can be trusted."""
        self._in_flight = None
        return self._residency.running


def _useful_drafts(request: ActiveRequest) -> int:
    """Drafts that could still be output if every launched step commits a single token."""
    num_steps = 1 + (request.max_in_flight_tokens > 0)
    return max(0, request.max_total_tokens - len(request.tokens) - num_steps - 1)
