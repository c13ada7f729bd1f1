"""What finished steps add up to, and what is told of each."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
from specsched_protocol.fairness import RecentTokens
from specsched_protocol.plan import StepReport

from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.blocks import BlockPool
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.counters import EngineStats, StepCounters, StepOutcomes
from specsched_executor.engine.delivery import Delivery
from specsched_executor.engine.drafting import NewDrafts
from specsched_executor.engine.fallback import Allowance
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.step_log import StepLog
from specsched_executor.engine.target_pass import PassOutcome

__all__ = ["StepAccounts"]


class StepAccounts:
    """Totals and distributions over the steps of one loop; see EngineStats for the counters."""

    def __init__(self, config: EngineConfig) -> None:
        self.counters = StepCounters()
        self.outcomes = StepOutcomes(config.max_draft_tokens)
        self.recent_tokens = RecentTokens(config.max_num_seqs)
        self.asked_draft_tokens = 0
        """Length that was asked for when the drafts of the next step to finish were made."""
        self._log = StepLog()

    def finish(
        self, batch: StepBatch, outcome: PassOutcome, drafts: NewDrafts, allowance: Allowance
    ) -> StepReport:
        """Take a step in, in order; returns what schedulers are told of it."""
        report = self._report(batch, outcome, drafts)
        self.outcomes.observe(report)
        self.recent_tokens.observe(report.slot_id, report.generation, report.num_accepted + 1)
        self.asked_draft_tokens = allowance.next_draft_tokens
        budget = min(allowance.budget, batch.num_drafts)
        self._log.observe(report, budget, allowance.fallback, has_drafts=batch.num_drafts > 0)
        counters = self.counters
        counters.num_steps += 1
        counters.last_budget = budget
        counters.num_rows += outcome.num_rows
        counters.num_scheduled_tokens += budget
        counters.num_verified_tokens += int(report.num_verified.sum())
        counters.num_accepted_tokens += int(report.num_accepted.sum())
        counters.num_drafted_tokens += drafts.num_tokens
        return report

    def stats(
        self, residency: Residency, pool: BlockPool, delivery: Delivery, max_running: int
    ) -> EngineStats:
        """A snapshot of these and of what the requests hold."""
        counters = self.counters
        return EngineStats(
            num_running_requests=residency.num_running,
            num_waiting_requests=residency.num_waiting,
            max_running_requests=max_running,
            num_used_tokens=(pool.num_blocks - pool.num_free) * pool.block_size,
            max_tokens=pool.num_blocks * pool.block_size,
            num_preemptions=residency.num_preemptions,
            num_failed_sinks=delivery.num_failed_sinks,
            num_steps=counters.num_steps,
            num_planned_steps=counters.num_planned_steps,
            num_fallback_steps=MappingProxyType(dict(counters.num_fallback_steps)),
            num_rows=counters.num_rows,
            num_drafted_tokens=counters.num_drafted_tokens,
            num_scheduled_tokens=counters.num_scheduled_tokens,
            num_verified_tokens=counters.num_verified_tokens,
            num_accepted_tokens=counters.num_accepted_tokens,
            num_output_tokens=counters.num_output_tokens,
            num_failed_steps=counters.num_failed_steps,
            num_failed_requests=counters.num_failed_requests,
            last_budget=counters.last_budget,
        )

    def _report(self, batch: StepBatch, outcome: PassOutcome, drafts: NewDrafts) -> StepReport:
        samples = batch.sampling_rows
        return StepReport(
            step_id=batch.step_id,
            num_tokens=outcome.num_rows,
            padded_num_tokens=outcome.padded_num_rows or outcome.num_rows,
            num_prefill_tokens=batch.num_prefill_tokens,
            num_sampling=batch.num_sampling,
            asked_draft_tokens=self.asked_draft_tokens,
            context_tokens=batch.context_tokens,
            draft_ms=drafts.draft_ms,
            verify_ms=outcome.verify_ms,
            slot_id=batch.slot_ids[samples].astype(np.uint32),
            generation=batch.generations[samples].astype(np.uint32),
            num_verified=outcome.verify_lens[samples].astype(np.uint32),
            num_accepted=outcome.num_accepted[samples].astype(np.uint32),
            teaches=batch.teaches[samples],
        )
