"""The step loop of an executor with a scheduler beside it, in simulated time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.filling import budget_of_size
from specsched_executor.engine.forecast import DraftForecast
from specsched_protocol.fairness import RecentTokens, fair_weights
from specsched_protocol.plan import StepReport
from specsched_scheduler.decision import NO_CAP
from specsched_scheduler.decision.step import StepInput, StepPlan

from tests.bench.simulator.machine import Machine
from tests.bench.simulator.ranking import rank_drafts
from tests.bench.simulator.scheduler import Plan, Scheduler
from tests.bench.simulator.slots import NOBODY, Slots
from tests.bench.simulator.workload import Workload

__all__ = ["Result", "simulate"]

Ints = npt.NDArray[np.int64]


@dataclass
class Result:
    """What became of a run, its first quarter of requests left out.

    tokens, ms: in total. pace_ms: ms per token of each request that ended. step_ms: of each step;
    least_ms: the same step's time if it had verified nothing. draft_tokens: length of each draft.
    num_drafted_steps: steps with drafts present.
    """

    tokens: int = 0
    accepted: int = 0
    ms: float = 0.0
    pace_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    least_ms: list[float] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)
    draft_tokens: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Throughput."""
        return self.tokens / self.ms * 1e3


class Executor:
    """Runs steps; its scheduler is asked for step t + 1 before step t runs."""

    def __init__(
        self,
        policy: str,
        workload: Workload,
        machine: Machine,
        seed: int,
        scheduler: Scheduler | None = None,
    ) -> None:
        """scheduler: one that has been at work before, of as many slots at least."""
        self.machine, self.workload = machine, workload
        self.scheduler = scheduler or Scheduler(policy, workload, machine, seed)
        self.slots = Slots(workload, workload.draw(200_000 // 4, seed))
        self.now_ms = 0.0
        # The executor ranks by paces of its own: a step newer than the scheduler's.
        self._recent = RecentTokens(workload.concurrency)
        self._forecast = DraftForecast(workload.concurrency)
        self._plan: Plan | None = None
        self._asked_draft_tokens = 0

    def step(self, step_id: int, noise: float, result: Result | None) -> None:
        """Run one step; `result` None: nothing is counted."""
        slots, machine = self.slots, self.machine
        slots.admit(self.now_ms)
        chunk = self._chunks(int(slots.decodes.sum()))
        finals = (chunk > 0) & (chunk == slots.waiting_tokens)
        sampling = np.flatnonzero(slots.decodes | finals)
        if not len(sampling) and not chunk.any():
            self.now_ms = max(self.now_ms, slots.requests.arrival_ms[slots.num_drawn])
            return
        num_prefill = int(chunk.sum() - finals.sum())
        num_other = int(slots.decodes.sum() + chunk.sum())
        context = int(slots.context()[sampling].sum())
        plan = self._plan
        if plan is None:
            plan = Plan(StepPlan(0, NO_CAP, 1, 0, 0, 0, 0.0, 0.0), self._full_length, 0)
        verified = self._verify(sampling, plan, num_other)
        self._plan = self._ask(step_id + 1, sampling, chunk, plan)
        slots.waiting_tokens -= chunk
        accepted = np.minimum(
            verified, self.workload.recordings.accepted[slots.draft_row[sampling]]
        )
        tokens = np.minimum(accepted + 1, slots.num_left(sampling))
        length = plan.next_draft_tokens
        num_rows, num_sampling = num_other + int(verified.sum()), len(sampling)
        step_ms = machine.step_ms(num_rows, num_sampling, context, length) * noise
        least_ms = machine.step_ms(num_other, num_sampling, context, length) * noise
        self._advance(sampling, finals, tokens, step_ms)
        self._draft(length)
        draft_ms = machine.draft_ms(num_sampling, length) * noise
        times_ms = draft_ms, step_ms - draft_ms
        self._report(
            step_id, sampling, verified, accepted, num_rows, num_prefill, context, times_ms
        )
        self._asked_draft_tokens = length
        if result is not None:
            result.tokens += int(tokens.sum())
            result.accepted += int(accepted.sum())
            result.ms += step_ms
            result.step_ms.append(step_ms)
            result.least_ms.append(least_ms)
            result.budgets.append(int(verified.sum()))
            result.draft_tokens.append(length)
            result.lengths.append(self.scheduler.draft_length.plan.draft_tokens)

    @property
    def _full_length(self) -> int:
        return self.workload.recordings.max_draft_tokens

    def _chunks(self, num_decoding: int) -> Ints:
        """Int64 [S]: prompt rows of this step, first come first served."""
        slots = self.slots
        room = self.machine.max_batched_tokens - num_decoding
        order = np.argsort(slots.request, kind="stable")
        waiting = np.where(slots.request != NOBODY, slots.waiting_tokens, 0)[order]
        before = np.cumsum(waiting) - waiting
        chunk = np.zeros_like(waiting)
        chunk[order] = np.clip(room - before, 0, waiting)
        return chunk

    def _verify(self, sampling: Ints, plan: Plan, num_other: int) -> Ints:
        slots = self.slots
        weight = np.ones(len(sampling))
        if self.scheduler.rule.fairness > 0.0:
            paces = self._recent.of(sampling, slots.generation[sampling])
            weight = fair_weights(weight, paces, self.scheduler.rule.fairness)
        present = np.minimum(slots.draft_len[sampling], np.maximum(slots.num_left(sampling) - 1, 0))
        room = max(self.machine.max_batched_tokens - num_other, 0)
        self._observe_drafts(sampling, present)
        told = self.workload.recordings.confidence[slots.draft_row[sampling]]
        confidence = self.scheduler.judged(told)
        budget = plan.step.budget
        if plan.bounds_rows:
            budget = max(0, budget - max(0, num_other - plan.num_other_tokens))
        if plan.fills_size:
            sizes = self._sizes_in_use()
            budget = budget_of_size(budget, num_other, plan.num_other_tokens, sizes)
        budget = min(budget, room)
        return rank_drafts(confidence, present, weight, budget, plan.step.max_verify_len)

    def _sizes_in_use(self) -> list[int]:
        """Captured are sizes up to a full verification of all requests, as in an executor."""
        most = self.workload.concurrency * (self._full_length + 1)
        return [size for size in self.machine.sizes_in_use if size <= most]

    def _padded(self, num_rows: int) -> int:
        """Rows of the graph that runs so many, or those themselves where there is none."""
        return next((size for size in self._sizes_in_use() if size >= num_rows), num_rows)

    def _observe_drafts(self, sampling: Ints, present: Ints) -> None:
        """Learn how often a request without a draft brings one, as an executor does."""
        is_one, nothing = (
            np.ones(len(sampling), dtype=bool),
            np.zeros(len(sampling), dtype=np.int64),
        )
        batch = StepBatch(
            step_id=0,
            requests=(),
            slot_ids=sampling,
            generations=self.slots.generation[sampling],
            first_positions=nothing,
            num_base_rows=is_one.astype(np.int64),
            num_draft_tokens=present,
            samples=is_one,
            teaches=is_one,
            max_draft_rows=0,
        )
        self._forecast.observe(batch, self.slots.was_offered[sampling])

    def _expected_drafts(self, sampling: Ints, next_draft_tokens: int) -> Ints:
        """Drafts expected in the step to come: of full length where there is one now, and of as
        many others as the executor forecasts."""
        slots = self.slots
        longest = np.minimum(next_draft_tokens, np.maximum(slots.num_left(sampling) - 2, 0))
        is_silent = (slots.draft_len[sampling] == 0) & (longest > 0)
        is_quiet = is_silent & (np.cumsum(is_silent) > self._forecast.num_expected_rows)
        return np.where(is_quiet, 0, longest)

    def _ask(self, step_id: int, sampling: Ints, chunk: Ints, plan: Plan) -> Plan:
        """The plan request as the executor words it: the batch to come if nobody comes or goes."""
        slots = self.slots
        waiting = slots.waiting_tokens - chunk
        decodes = np.zeros(len(waiting), dtype=bool)
        decodes[sampling] = True
        room = self.machine.max_batched_tokens - len(sampling)
        num_prompt = int(min(np.where(slots.request != NOBODY, waiting, 0).sum(), room))
        num_drafts = self._expected_drafts(sampling, plan.next_draft_tokens)
        confidence = self.workload.recordings.confidence[slots.draft_row[sampling]].copy()
        known = slots.draft_len[sampling]
        confidence[np.arange(confidence.shape[1]) >= known[:, None]] = np.nan
        step = StepInput(
            confidence=confidence,
            num_draft_tokens=num_drafts.astype(np.uint32),
            has_confidence=known,
            samples=np.ones(len(sampling), dtype=np.bool_),
            weight=np.ones(len(sampling), dtype=np.float32),
            context_tokens=slots.context()[sampling].astype(np.uint32),
            num_requests=len(sampling),
            num_other_tokens=len(sampling) + num_prompt,
            num_prefill_tokens=num_prompt,
            max_budget=room - num_prompt,
            next_draft_tokens=NO_CAP,
        )
        return self.scheduler.plan(step_id, step, sampling, slots.generation[sampling])

    def _advance(self, sampling: Ints, finals: Ints, tokens: Ints, step_ms: float) -> None:
        slots = self.slots
        self.now_ms += step_ms
        slots.started_ms[finals] = self.now_ms - step_ms
        slots.output[sampling] += tokens
        slots.finish(sampling, self.now_ms)

    def _draft(self, length: int) -> None:
        slots = self.slots
        decoding = np.flatnonzero(slots.decodes)
        slots.draft_len[:] = 0
        slots.give_drafts(decoding)
        offered = self.workload.recordings.num_drafted[slots.draft_row[decoding]]
        slots.draft_len[decoding] = np.minimum(offered, length)
        slots.was_offered[:] = False
        slots.was_offered[decoding] = (slots.num_left(decoding) > 1) & (length > 0)

    def _report(
        self,
        step_id: int,
        sampling: Ints,
        verified: Ints,
        accepted: Ints,
        num_rows: int,
        num_prefill: int,
        context: int,
        times_ms: tuple[float, float],
    ) -> None:
        """times_ms: of drafting, of the rest."""
        report = StepReport(
            step_id=step_id,
            num_tokens=num_rows,
            padded_num_tokens=self._padded(num_rows),
            num_prefill_tokens=num_prefill,
            num_sampling=len(sampling),
            asked_draft_tokens=self._asked_draft_tokens,
            context_tokens=context,
            draft_ms=times_ms[0],
            verify_ms=times_ms[1],
            slot_id=sampling.astype(np.uint32),
            generation=self.slots.generation[sampling].astype(np.uint32),
            num_verified=verified.astype(np.uint32),
            num_accepted=accepted.astype(np.uint32),
            teaches=np.ones(len(sampling), dtype=np.bool_),
        )
        self._recent.observe(report.slot_id, report.generation, report.num_accepted + 1)
        self.scheduler.learn(report)


def simulate(
    policy: str,
    workload: Workload,
    machine: Machine,
    *,
    num_requests: int,
    seed: int,
    scheduler_type: type[Scheduler] = Scheduler,
) -> Result:
    """Run a policy until so many requests ended; before a quarter of them did nothing is counted.

    The same seed gives every policy the same requests, noise and profile. Ends in requests, not in
    steps or time, so that what is counted is the same work: prompts cost as much as many tokens.
    """
    scheduler = scheduler_type(policy, workload, machine, seed)
    executor, result = Executor(policy, workload, machine, seed, scheduler), Result()
    finished = executor.slots.finished
    for step_id, noise in enumerate(machine.noise_factors(seed), start=1):
        executor.step(step_id, noise, result if len(finished) >= num_requests // 4 else None)
        if len(finished) >= num_requests:
            break
    paces = [pace for _, pace in executor.slots.finished if np.isfinite(pace)]
    result.pace_ms = paces
    return result
