"""Steps that overlap: step t is launched before the outputs of t - 1 reach the host.

Iteration t: form t, read its plan, launch it, wait for t - 1, publish the confidences that t
verifies and ask for plan t + 1, then process t - 1. Nothing waits between forming and launching.
What the host cannot know at launch is bounded: the tokens that t - 1 may commit, hence the KV room
and the drafts; tokens past a stop are discarded when they come. A drafter on the host has to see
the outputs first: then nothing overlaps and t itself is processed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from specsched_executor.device.in_flight import TokensInFlight
from specsched_executor.device.runner import DeviceRunner, LaunchedStep
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.blocks import BlockPool
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.delivery import Delivery
from specsched_executor.engine.drafting import Drafting, NewDrafts
from specsched_executor.engine.fallback import Allowance
from specsched_executor.engine.request_loop import RequestLoop
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.slot_columns import SlotColumns, Slots
from specsched_executor.engine.target_pass import Integers, PassOutcome

__all__ = ["PipelinedLoop"]

_MIN_WAIT_NS: Final = 20_000
"""Who waited for the device at least so long was there before it: it has time left now."""
_WATCHED_SHARE: Final = 0.4
"""Of a step's time, from its begin on: the rest is enough to launch the next one."""


class PipelinedLoop(RequestLoop):
    """Keeps one step in flight. host_drafting: a drafter on the host, which waits for each step's
    tokens, so that nothing overlaps; None: the device drafts."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        gate: ConfidenceGate,
        runner: DeviceRunner,
        host_drafting: Drafting | None,
        residency: Residency,
        columns: SlotColumns,
        pool: BlockPool,
        delivery: Delivery,
    ) -> None:
        super().__init__(
            config=config,
            gate=gate,
            residency=residency,
            columns=columns,
            pool=pool,
            delivery=delivery,
            overlaps=host_drafting is None,
        )
        self._runner = runner
        self._host_drafting = host_drafting
        self._in_flight: LaunchedStep | None = None
        self._tokens_in_flight = TokensInFlight(columns)

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
        allowance = self._plans.read(batch)
        self._plans.observe_drafts(batch)
        weights = self._plans.weights(batch, allowance)
        lens = self._next_draft_lens(batch, allowance)
        previous = self._in_flight
        launched = self._runner.launch(batch, allowance, weights, lens, previous)
        self._in_flight = launched
        self._tokens_in_flight.launch(batch, launched.token_bounds, launched.draft_lens)
        collected = None if previous is None else self._collect(previous)
        self._plans.ask_for_next(batch, allowance)
        if previous is not None and collected is not None:
            self._finish(previous, *collected)
        if self._host_drafting is not None:
            self._drain()

    def _has_room(self) -> bool:
        """Whether every request that decodes can grow to all it may have committed."""
        if self._residency.num_running <= self._pool.num_free:
            return True  # a step leaves room for its drafts: the bonus token takes a block at most
        columns, slots = self._columns, self._residency.running_slots
        decoding = slots[columns.num_pending_tokens(slots) == 1]
        most = columns.max_num_tokens(decoding)
        missing = self._residency.num_missing_blocks(decoding, most)
        return bool(missing.sum() <= self._pool.num_free)

    def _drain(self) -> None:
        """Wait for what is in flight and process it."""
        launched, self._in_flight = self._in_flight, None
        if launched is not None:
            self._finish(launched, *self._collect(launched))

    def _collect(self, launched: LaunchedStep) -> tuple[PassOutcome, NewDrafts]:
        """Wait for outputs; their confidences may leave once the next plan has been read."""
        began_ns = time.monotonic_ns()
        outcome, drafts = self._runner.collect(launched)
        self._plans.watch_until_ns = self._end_of_watch_ns(began_ns, outcome, drafts)
        bounds = launched.token_bounds
        self._tokens_in_flight.collect(launched.batch, bounds, outcome.num_accepted)
        if self._host_drafting is None:
            self._gate.withhold(drafts.rows)
        return outcome, drafts

    def _end_of_watch_ns(self, began_ns: int, outcome: PassOutcome, drafts: NewDrafts) -> int:
        """How long a plan may be watched for: while the step that just began keeps the device busy.

        It is taken to last as long as the one that ended. 0 where the host came late, for then the
        device has less to do than that, and where no step is in flight.
        """
        now_ns = time.monotonic_ns()
        if self._in_flight is None or now_ns - began_ns < _MIN_WAIT_NS:
            return 0
        return now_ns + int(_WATCHED_SHARE * 1e6 * (outcome.verify_ms + drafts.draft_ms))

    def _finish(self, launched: LaunchedStep, outcome: PassOutcome, drafts: NewDrafts) -> None:
        batch = launched.batch
        self._tokens_in_flight.finish(batch, launched.token_bounds)
        self._commit(batch, outcome)
        if self._host_drafting is not None:
            self._host_drafting.observe(batch, outcome)
            length = launched.allowance.next_draft_tokens
            drafts = self._host_drafting.draft(batch, outcome, length)
            self._gate.withhold(drafts.rows)
        self._finish_step(batch, outcome, drafts, launched.allowance)

    def _next_draft_lens(self, batch: StepBatch, allowance: Allowance) -> Slots:
        """Drafts to make for each request at the end of the step; none where the host drafts.

        As many as could still be output, this step's token or tokens committed first.
        """
        if not self._runner.drafts:
            return np.zeros_like(batch.slot_ids)
        columns, slots = self._columns, batch.slot_ids
        least = columns.num_tokens[slots] + columns.min_in_flight_tokens[slots] + 1
        useful = columns.max_total_tokens[slots] - least - 1
        most = min(allowance.next_draft_tokens, self._config.max_draft_tokens)
        return np.where(batch.samples, np.maximum(np.minimum(useful, most), 0), 0)

    def _note_cached(
        self, batch: StepBatch, is_live: npt.NDArray[np.bool_], num_new_tokens: Integers
    ) -> None:
        """The anchor's own row is part of the step in flight, if the request is."""
        columns, chosen = self._columns, is_live & batch.samples
        slots = batch.slot_ids[chosen]
        is_launched = columns.max_in_flight_tokens[slots] > 0
        known = columns.num_tokens[slots] + num_new_tokens[chosen]
        columns.num_cached_tokens[slots] = known - ~is_launched

    def _abandon(self) -> Sequence[ActiveRequest]:
        """After a fault nothing that was launched can be trusted."""
        self._in_flight = None
        self._runner.settle()
        return self._residency.running
