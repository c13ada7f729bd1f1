"""The requests of an engine and what steps have in common, however they overlap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import structlog
import torch
from specsched_protocol.fairness import RecentTokens
from specsched_protocol.plan import (
    ROWS_BOUND_FLAG,
    FallbackReason,
    PlanRequest,
    StepDecision,
    StepReport,
)

from specsched_executor.core import TokenLogprobs
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import BatchEntry, StepBatch
from specsched_executor.engine.batch_former import BatchFormer
from specsched_executor.engine.blocks import BlockPool
from specsched_executor.engine.commit import commit_tokens
from specsched_executor.engine.confidence_gate import ConfidenceGate, no_rows
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.counters import EngineStats, StepCounters, StepOutcomes
from specsched_executor.engine.delivery import ABORTED, Delivery
from specsched_executor.engine.drafting import NewDrafts
from specsched_executor.engine.fallback import Allowance, FallbackState
from specsched_executor.engine.forecast import DraftForecast
from specsched_executor.engine.inputs import BatchTensors
from specsched_executor.engine.planning import PlanFacts, build_plan_request
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.step_log import StepLog
from specsched_executor.engine.target_pass import PassOutcome

__all__ = ["RequestLoop"]

_log = structlog.get_logger()

_UNUSABLE_LOGITS = "the target's logits for this request are not finite (NaN or infinite)"


class RequestLoop(ABC):
    """Owns the state of the requests and advances it. Belongs to one thread.

    outcomes: distributions over its steps.
    """

    def __init__(
        self,
        *,
        config: EngineConfig,
        gate: ConfidenceGate,
        residency: Residency,
        pool: BlockPool,
        delivery: Delivery,
    ) -> None:
        self._config = config
        self._gate = gate
        self._residency = residency
        self._pool = pool
        self._delivery = delivery
        self._former = BatchFormer(residency, config.max_num_batched_tokens)
        self._fallback = FallbackState(config.fallback, config.max_draft_tokens)
        self._forecast = DraftForecast()
        self._counters = StepCounters()
        self.outcomes = StepOutcomes(config.max_draft_tokens)
        self._asked: PlanRequest | None = None
        self._asked_draft_tokens = 0
        self._recent_tokens = RecentTokens(config.max_num_seqs)
        self._log = StepLog()
        self._step_id = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self._residency.num_running or self._residency.num_waiting)

    def stats(self) -> EngineStats:
        """A snapshot."""
        counters, pool = self._counters, self._pool
        return EngineStats(
            num_running_requests=self._residency.num_running,
            num_waiting_requests=self._residency.num_waiting,
            max_running_requests=self._config.max_num_seqs,
            num_used_tokens=(pool.num_blocks - pool.num_free) * pool.block_size,
            max_tokens=pool.num_blocks * pool.block_size,
            num_preemptions=self._residency.num_preemptions,
            num_failed_sinks=self._delivery.num_failed_sinks,
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

    def queue(self, request: ActiveRequest) -> None:
        """Take a new request."""
        self._residency.queue(request)

    def abort(self, request: ActiveRequest) -> None:
        """End a request early; one that is over already is left alone."""
        if not request.is_over:
            self._drop(request)
            self._delivery.send(request, stop=ABORTED)

    def step(self) -> bool:
        """Run one step; False where there was nothing to run.

        Whatever goes wrong fails the requests of this step and leaves the others and the loop.
        """
        self._step_id += 1
        structlog.contextvars.bind_contextvars(step_id=self._step_id)
        batch: StepBatch | None = None
        try:
            batch = self._form(self._step_id)
            if batch is None:
                return False
            self._run(batch)
        except Exception as error:  # noqa: BLE001 - the loop outlives whatever fails in a step
            self._counters.num_failed_steps += 1
            entries = batch.entries if batch else ()
            concerned = [*self._abandon(), *(e.request for e in entries)]
            concerned = concerned or list(self._residency.running)
            _log.exception("step failed", request_ids=[r.request_id for r in concerned])
            self._fail(concerned, f"step failed: {type(error).__name__}: {error}")
            self._gate.withhold(no_rows(self._step_id, self._config.max_draft_tokens))
            self._asked_draft_tokens = 0
        return True

    def _form(self, step_id: int) -> StepBatch | None:
        """The batch of the step; None where nothing can run."""
        return self._former.form(step_id)

    def _abandon(self) -> Sequence[ActiveRequest]:
        """Give up what is in flight, after a fault; whom that concerns."""
        return ()

    @abstractmethod
    def _run(self, batch: StepBatch) -> None:
        """Run a batch."""

    def _read_plan(self, batch: StepBatch) -> Allowance:
        answer = self._gate.read_plan(batch.step_id)
        num_expected = self._num_expected_drafts(batch)
        if not isinstance(answer, FallbackReason):
            self._counters.num_planned_steps += batch.num_draft_tokens > 0
            return self._fallback.decided(self._within_rows(answer, batch), num_expected)
        if batch.num_draft_tokens:
            self._counters.num_fallback_steps[answer] += 1
        wants_stand_in = self._fallback.wants_stand_in
        stand_in = self._gate.stand_in(batch.step_id) if wants_stand_in else None
        return self._fallback.fallen_back(answer, num_expected, stand_in)

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
        return self._config.max_draft_tokens * len(batch.entries)

    def _ask_for_next(self, batch: StepBatch, allowance: Allowance) -> None:
        room = self._pool.num_free * self._pool.block_size + sum(
            len(e.request.block_ids) * self._pool.block_size - len(e.request.tokens)
            for e in batch.entries
        )
        facts = PlanFacts(
            next_draft_tokens=allowance.next_draft_tokens,
            num_silent_rows=self._forecast.num_expected_rows,
            num_waiting_tokens=sum(len(r.tokens) for r in self._admissible()),
            max_kv_draft_tokens=room,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
        )
        self._asked = self._gate.publish(
            lambda source_step_id: build_plan_request(batch, source_step_id, facts)
        )

    def _admissible(self) -> Iterable[ActiveRequest]:
        num_free = self._config.max_num_seqs - self._residency.num_running
        return self._residency.waiting[:num_free]

    def _commit(self, batch: StepBatch, outcome: PassOutcome) -> None:
        verification = outcome.verification
        token_ids = verification.token_ids.tolist()
        num_verified = outcome.verify_lens.tolist()
        num_accepted = verification.num_accepted.tolist()
        faulty = verification.faulty.tolist()
        for index, entry in enumerate(batch.entries):
            if entry.request.is_over:  # since the step was launched
                continue
            if faulty[index]:
                self._fail([entry.request], _UNUSABLE_LOGITS)
                continue
            entry.request.num_verified_tokens += num_verified[index]
            entry.request.num_accepted_tokens += num_accepted[index]
            entry.request.prompt_logprobs += outcome.prompt_logprobs.get(index, ())
            logprobs = outcome.logprobs.get(index, ())
            self._advance(entry, token_ids[index][: num_accepted[index] + 1], logprobs)

    def _advance(
        self, entry: BatchEntry, new_tokens: list[int], logprobs: Sequence[TokenLogprobs]
    ) -> None:
        request = entry.request
        self._note_cached(entry, len(new_tokens))
        if not entry.samples:
            return
        kept, stop = commit_tokens(request, new_tokens)
        self._counters.num_output_tokens += len(kept)
        if stop is not None:
            self._drop(request)
        is_sent = self._delivery.send(request, kept, stop, logprobs=logprobs[: len(kept)])
        if not is_sent and stop is None:
            self.abort(request)

    def _note_cached(self, entry: BatchEntry, num_new_tokens: int) -> None:
        """The rows of the tokens that a step commits, all but the last, are in the cache."""
        request = entry.request
        request.num_cached_tokens = entry.first_position + entry.num_base_rows
        if entry.samples:
            request.num_cached_tokens += num_new_tokens - 1

    def _fail(self, requests: Iterable[ActiveRequest], error: str) -> None:
        for request in requests:
            if not request.is_over:
                self._drop(request)
                self._counters.num_failed_requests += 1
                self._delivery.send(request, error=error)

    def _drop(self, request: ActiveRequest) -> None:
        self._residency.drop(request)
        request.is_over = True  # not before: one that could not be dropped must still be told

    def _finish_step(
        self,
        batch: StepBatch,
        tensors: BatchTensors,
        outcome: PassOutcome,
        drafts: NewDrafts,
        allowance: Allowance,
    ) -> None:
        num_accepted = outcome.verification.num_accepted
        samples = tensors.samples.numpy()

        def uint32(values: torch.Tensor) -> npt.NDArray[np.uint32]:
            chosen: npt.NDArray[np.uint32] = values.numpy()[samples].astype(np.uint32)
            return chosen

        report = StepReport(
            step_id=batch.step_id,
            num_tokens=outcome.num_rows,
            padded_num_tokens=outcome.padded_num_rows or outcome.num_rows,
            num_prefill_tokens=batch.num_prefill_tokens,
            num_sampling=int(samples.sum()),
            asked_draft_tokens=self._asked_draft_tokens,
            context_tokens=batch.context_tokens,
            draft_ms=drafts.draft_ms,
            verify_ms=outcome.verify_ms,
            slot_id=uint32(tensors.slot_ids),
            generation=uint32(tensors.generations),
            num_verified=uint32(outcome.verify_lens),
            num_accepted=uint32(num_accepted),
            teaches=tensors.teaches.numpy()[samples],
        )
        self._gate.report(report)
        self.outcomes.observe(report)
        self._recent_tokens.observe(report.slot_id, report.generation, report.num_accepted + 1)
        self._asked_draft_tokens = allowance.next_draft_tokens
        counters = self._counters
        budget = min(allowance.budget, batch.num_draft_tokens)
        has_drafts = batch.num_draft_tokens > 0
        self._log.observe(report, budget, allowance.fallback, has_drafts=has_drafts)
        counters.num_steps += 1
        counters.last_budget = budget
        counters.num_rows += outcome.num_rows
        counters.num_scheduled_tokens += budget
        counters.num_verified_tokens += int(outcome.verify_lens.sum())
        counters.num_accepted_tokens += int(num_accepted.sum())
        counters.num_drafted_tokens += drafts.num_tokens
