"""What the steps of a loop ask a scheduler for, and what they may verify by its answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from specsched_protocol.fairness import fair_weights
from specsched_protocol.plan import ROWS_BOUND_FLAG, FallbackReason, PlanRequest, StepDecision

from specsched_executor.engine.accounts import StepAccounts
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.blocks import BlockPool
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.fallback import Allowance, FallbackState
from specsched_executor.engine.forecast import DraftForecast
from specsched_executor.engine.planning import PlanFacts, build_plan_request
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.slot_columns import SlotColumns

__all__ = ["StepPlans"]


class StepPlans:
    """Asks for the plan of a step while the one before runs; reads it, or falls back, in time.

    overlaps: a step is formed while the one before is in flight. watch_until_ns: of
    CLOCK_MONOTONIC, until when a plan that is not there may be watched for; 0: not at all.
    """

    def __init__(
        self,
        *,
        config: EngineConfig,
        gate: ConfidenceGate,
        residency: Residency,
        columns: SlotColumns,
        pool: BlockPool,
        accounts: StepAccounts,
        overlaps: bool,
    ) -> None:
        self.watch_until_ns = 0
        self._config = config
        self._gate = gate
        self._residency = residency
        self._columns = columns
        self._pool = pool
        self._accounts = accounts
        self._overlaps = overlaps
        self._fallback = FallbackState(config.fallback, config.max_draft_tokens)
        self._forecast = DraftForecast(config.max_num_seqs)
        self._asked: PlanRequest | None = None

    def read(self, batch: StepBatch) -> Allowance:
        """What the step may verify: by its plan, or by the fallback, which is counted."""
        answer = self._gate.read_plan(batch.step_id, self.watch_until_ns)
        num_expected = self._num_expected_drafts(batch)
        counters = self._accounts.counters
        if not isinstance(answer, FallbackReason):
            counters.num_planned_steps += batch.num_drafts > 0
            within = self._within_rows(answer, batch)
            planned = None if self._asked is None else self._asked.num_other_tokens
            return self._fallback.decided(within, num_expected, planned)
        if batch.num_drafts:
            counters.num_fallback_steps[answer] += 1
        wants_stand_in = self._fallback.wants_stand_in
        stand_in = self._gate.stand_in(batch.step_id) if wants_stand_in else None
        return self._fallback.fallen_back(answer, num_expected, stand_in)

    def observe_drafts(self, batch: StepBatch) -> None:
        """Learn how often those who had no draft bring one, where that has to be guessed."""
        if not self._overlaps:
            self._forecast.observe(batch, self._columns.was_offered_draft[batch.slot_ids])

    def weights(self, batch: StepBatch, allowance: Allowance) -> npt.NDArray[np.float32]:
        """What the drafts of each request are ranked by, [R]: see specsched_protocol.fairness."""
        weights: npt.NDArray[np.float32] = self._columns.weight[batch.slot_ids]
        if allowance.fairness == 0.0:
            return weights
        paces = self._accounts.recent_tokens.of(batch.slot_ids, batch.generations)
        return fair_weights(weights, paces, allowance.fairness).astype(np.float32)

    def ask_for_next(self, batch: StepBatch, allowance: Allowance) -> None:
        """Publish the plan request of the step after `batch`."""
        columns, slots = self._columns, batch.slot_ids
        num_blocks = self._pool.num_free + int(columns.num_blocks[slots].sum())
        room = num_blocks * self._pool.block_size - int(columns.num_tokens[slots].sum())
        facts = PlanFacts(
            next_draft_tokens=allowance.next_draft_tokens,
            num_silent_rows=self._forecast.num_expected_rows,
            num_waiting_tokens=sum(r.num_tokens for r in self._admissible()),
            max_kv_draft_tokens=room,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            overlaps=self._overlaps,
        )
        self._asked = self._gate.publish(
            lambda source_step_id: build_plan_request(batch, columns, source_step_id, facts)
        )

    def _within_rows(self, decision: StepDecision, batch: StepBatch) -> StepDecision:
        """`decision` with a smaller budget where it bounds the rows and more came than it knew of.

        Rows that are no drafts do not depend on the drafts that are verified beside them.
        """
        asked = self._asked
        if not decision.flags & ROWS_BOUND_FLAG or asked is None:
            return decision
        num_unforeseen = max(0, batch.num_other_tokens - asked.num_other_tokens)
        return replace(decision, budget=max(0, decision.budget - num_unforeseen))

    def _num_expected_drafts(self, batch: StepBatch) -> int:
        if self._asked is not None and self._asked.step_id == batch.step_id:
            return int(self._asked.num_draft_tokens.sum())
        return self._config.max_draft_tokens * len(batch.requests)

    def _admissible(self) -> Iterable[ActiveRequest]:
        num_free = self._config.max_num_seqs - self._residency.num_running
        return self._residency.first_waiting(num_free)
